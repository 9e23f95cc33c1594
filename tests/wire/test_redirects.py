"""Redirects and addresses: what a stranger names leads neither to other servers nor into private networks."""

import socket
from collections.abc import Callable, Mapping

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference, PeerMisbehaved, Refused
from cyberkv.cybergraph.peers import HttpPeer, Reach
from cyberkv.cybergraph.peers.reach import ANYWHERE
from cyberkv.cybergraph.peers.redirect import follow
from cyberkv.cybergraph.peers.url import GatewayUrl
from tests.wire.conftest import CALM
from tests.wire.liar import Exchange, lying
from tests.wire.synthetic import contents, conversation

STRANGERS = Reach(anywhere=False)


@pytest.fixture(scope="module")
def blocks() -> dict[Cid, bytes]:
    return contents(*conversation(blocks=1))


def moved(where: Callable[[Exchange], str], status: str = "302 Found", body: bytes = b"") -> Callable[[Exchange], None]:
    def behave(talk: Exchange) -> None:
        if "moved" in talk.target:
            talk.honest()
            return
        talk.head(status, location=where(talk), content_length=len(body))
        talk.send(body)

    return behave


def query(talk: Exchange) -> str:
    return f"format={'car' if talk.is_car else 'raw'}&moved=1"


def ask(url: str, blocks: Mapping[Cid, bytes], reach: Reach = ANYWHERE) -> None:
    with HttpPeer(url, patience=CALM, reach=reach) as peer:
        root = next(iter(blocks))
        assert dict(peer.get_many(list(blocks))) == blocks
        assert dict(peer.get_dag(root)) == blocks


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("body", [b"", b"moved", b"x" * 100_000])
def test_a_redirect_at_the_same_server_is_followed(blocks: dict[Cid, bytes], status: str, body: bytes) -> None:
    for where in (
        lambda talk: f"/ipfs/{talk.cid}?{query(talk)}",
        lambda talk: f"?{query(talk)}",
        lambda talk: f"{talk.server.url}/ipfs/{talk.cid}/?{query(talk)}",
    ):
        with lying(blocks, moved(where, status, body)) as server:
            ask(server.url, blocks)


def test_a_redirect_to_another_server_is_followed_where_that_is_allowed(blocks: dict[Cid, bytes]) -> None:
    with lying(blocks) as there:
        elsewhere = there.url.replace("127.0.0.1", "localhost")
        with lying(blocks, lambda talk: talk.head("302 Found", location=f"{elsewhere}{talk.target}")) as server:
            ask(server.url, blocks, Reach.to(("LocalHost",)))
            there.targets.clear()
            with pytest.raises(PeerMisbehaved, match="another server") as caught:
                ask(server.url, blocks, Reach.to(("localhost.example",)))
            assert "--allow-host localhost" in caught.value.hint
    assert there.targets == []


def test_another_port_is_another_server(blocks: dict[Cid, bytes]) -> None:
    with lying(blocks) as there:
        behave = moved(lambda talk: f"{there.url}/ipfs/{talk.cid}?{query(talk)}")
        with lying(blocks, behave) as server, pytest.raises(PeerMisbehaved, match="another server"):
            ask(server.url, blocks)
    assert there.targets == []


def test_going_in_circles_ends(blocks: dict[Cid, bytes]) -> None:
    def round_and_round(talk: Exchange) -> None:
        talk.head("302 Found", location=talk.target, content_length=0)

    with lying(blocks, round_and_round) as server, pytest.raises(PeerMisbehaved, match="more than 3"):
        ask(server.url, {cid: blocks[cid] for cid in list(blocks)[:1]})
    assert len(server.targets) == 4


CID = str(Cid.of(b"", "raw", "blake3"))
TARGET = f"/ipfs/{CID}?format=raw"


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (f"http://gateway.example{TARGET}", "gives up https"),
        (f"http://mirror.example{TARGET}", "gives up https"),
        (f"https://other.example{TARGET}", "another server"),
        (f"https://gateway.example:8443{TARGET}", "another server"),
        (f"https://{CID}.ipfs.gateway.example/", "a subdomain"),
        (f"https://{Cid.of(b'x', 'raw', 'blake3')}.ipfs.gateway.example/", "another server"),
        (f"https://user:secret@gateway.example{TARGET}", "no address"),
        ("ftp://gateway.example/x", "no address"),
        ("file:///etc/passwd", "no address"),
        ("https://[::1", "no address"),
        ("", "the same block"),
        ("/login", "the same block"),
        (f"/ipfs/{Cid.of(b'x', 'raw', 'blake3')}", "the same block"),
        (f"/ipfs/{CID}/../../secret", "the same block"),
    ],
)
def test_what_is_not_followed(location: str, why: str) -> None:
    at = GatewayUrl.parse("https://gateway.example")
    target = TARGET if location else "/elsewhere"
    with pytest.raises(PeerMisbehaved, match=why):
        follow(at, target, location, CID, Reach.to(("mirror.example",)))


def test_control_what_is_followed() -> None:
    at, reach = GatewayUrl.parse("https://gateway.example"), Reach.to(("mirror.example",))
    for location, there in (
        (TARGET, "https://gateway.example"),
        (f"https://gateway.example:443{TARGET}", "https://gateway.example:443"),
        (f"https://Mirror.example{TARGET}", "https://mirror.example"),
    ):
        got, target = follow(at, "/ipfs/x", location, CID, reach)
        assert (str(got), target) == (there, TARGET)
    plain = GatewayUrl.parse("http://gateway.example")
    assert str(follow(plain, TARGET, f"https://mirror.example{TARGET}", CID, reach)[0]) == "https://mirror.example"


# Addresses.


def test_what_a_stranger_names_is_not_asked_at_private_addresses(blocks: dict[Cid, bytes]) -> None:
    with lying(blocks) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            with pytest.raises(Refused, match="no public address"):
                ask(url, blocks, STRANGERS)
        assert server.targets == []
        ask(server.url, blocks, Reach.to(("127.0.0.1",), anywhere=False))
        assert server.targets != []


def test_the_address_that_counts_is_the_one_connected_to(
    blocks: dict[Cid, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was public when somebody looked, and stands for this machine when it is dialled."""
    with lying(blocks) as server:
        port = int(server.url.rpartition(":")[2])
        answers = [[("93.184.216.34", 1)], [("127.0.0.1", port)]]
        resolved: list[str] = []

        def resolve(host: str, _port: int, **_: object) -> list[tuple[object, ...]]:
            resolved.append(host)
            found = answers[min(len(resolved), 2) - 1]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", where) for where in found]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        assert socket.getaddrinfo("rebind.example", port)[0][4] == ("93.184.216.34", 1)
        with HttpPeer(f"http://rebind.example:{port}", patience=CALM, reach=STRANGERS) as peer:
            with pytest.raises(Refused, match=r"leads to 127\.0\.0\.1"):
                list(peer.get_many([next(iter(blocks))]))
            assert len(resolved) == 2, "the name was resolved more than once for one connection"
        assert server.targets == []
        with HttpPeer(f"http://rebind.example:{port}", patience=CALM) as typed:  # the control
            assert dict(typed.get_many(list(blocks))) == blocks


@pytest.mark.parametrize("host", ["", "http://a", "a/b", "user@a", "a b", "[::1]", "a\n"])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(BadReference):
        Reach.to((host,))
