"""Readers who prove access by themselves: to the server that they were told, to no other, and as often as it takes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cyberkv.cybergraph.access import open_grant
from cyberkv.cybergraph.access.proof import Reader, Terms, make_ring
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagjson import encode
from cyberkv.cybergraph.errors import (
    AccessDenied,
    BlockNotFound,
    CyberKVError,
    MalformedNode,
    NotARecipient,
    PeerMisbehaved,
    PeerUnreachable,
    ProofRejected,
)
from cyberkv.cybergraph.gateway import build_app
from cyberkv.cybergraph.gateway.passes import LIFE_S
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Ring
from cyberkv.cybergraph.peers import HttpPeer, Reach
from cyberkv.cybergraph.peers.proving import ASK_AT, PROVE_AT, WANTS
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.asking import RAW, asking
from tests.wire.conftest import CALM, Served, running
from tests.wire.sealed_home import MORE, OTHER, READER, Home, SealedTalk, guarding
from tests.wire.synthetic import contents

PeerAt = Callable[..., HttpPeer]


@pytest.fixture
def home(talk: SealedTalk) -> Home:
    return talk.home


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Index]:
    """The reader's index."""
    with Index(tmp_path / "theirs") as opened:
        yield opened


def proofs(served: Served) -> int:
    return served.requests.count(f"{PROVE_AT}?")


def test_a_reader_gets_all_after_one_proof(home: Home, talk: SealedTalk, theirs: Index, peer_at: PeerAt) -> None:
    with guarding(home) as (served, _, _):
        into = MemoryStore()
        done = talk.fetch(into, theirs, [peer_at(served.url)])
        assert done.root == talk.plain
        assert contents(into, done.root) == contents(home.store, talk.plain)
        assert proofs(served) == 1
        assert not done.refused
        with pytest.raises(NotARecipient):
            talk.fetch(MemoryStore(), theirs, [peer_at(served.url)], OTHER)
        assert proofs(served) == 1


def test_who_has_the_blocks_names_and_proves_nothing_gets_nothing(
    home: Home, talk: SealedTalk, peer_at: PeerAt
) -> None:
    with guarding(home) as (served, _, _):
        peer = peer_at(served.url)
        manifest = talk.sealed.manifest
        with pytest.raises(AccessDenied) as caught:
            dict(peer.get_many([manifest]))
        assert caught.value.exit_code == 6
        hidden = sorted(talk.withheld() - {manifest, talk.sealed.pinset})[::4]
        with pytest.raises(BlockNotFound) as lacking:
            dict(peer.get_many(hidden))
        assert set(lacking.value.data["cids"]) == set(map(str, hidden))  # type: ignore[call-overload]
        peer.prove_with(talk.prover())
        assert dict(peer.get_many([manifest, *hidden])).keys() == {manifest, *hidden}
        assert proofs(served) == 1


def test_several_servers_are_each_proven_to(home: Home, talk: SealedTalk, theirs: Index, peer_at: PeerAt) -> None:
    """The second is never asked for what it answers with 401: it says that it has none of the blocks."""
    with guarding(home) as (first, _, _), guarding(home) as (second, _, _):
        peers = [peer_at(each.url) for each in (first, second)]
        prover = talk.prover()
        for peer in peers:
            peer.prove_with(prover)
        leaf = next(cid for cid in talk.withheld() if cid.codec == "raw" and cid != talk.sealed.manifest)
        assert [dict(peer.get_many([leaf])).keys() for peer in peers] == [{leaf}, {leaf}]
        assert (proofs(first), proofs(second)) == (1, 1)
        done = talk.fetch(MemoryStore(), theirs, [peer_at(each.url) for each in (first, second)])
        assert done.root == talk.plain


def test_a_gateway_without_a_door_is_asked_once(home: Home, talk: SealedTalk, theirs: Index, peer_at: PeerAt) -> None:
    absent = [Cid.of(bytes([number]), "raw", "sha2-256") for number in range(20)]
    with running(build_app(home.content())) as served:
        peer = peer_at(served.url)
        peer.prove_with(talk.prover())
        with pytest.raises(BlockNotFound):
            dict(peer.get_many(absent))
        assert served.requests.count(f"{ASK_AT}?") == 1
        assert talk.fetch(MemoryStore(), theirs, [peer_at(served.url)]).root == talk.plain
        assert proofs(served) == 0


def test_a_token_that_ends_or_is_forgotten_is_renewed(home: Home, talk: SealedTalk, peer_at: PeerAt) -> None:
    raw = [cid for cid in talk.withheld() if cid.codec == "raw"]
    with guarding(home) as (served, door, switch):
        peer = peer_at(served.url)
        peer.prove_with(talk.prover())
        assert len(dict(peer.get_many(raw[:20]))) == 20
        home.clock.now_s += LIFE_S
        assert len(dict(peer.get_many(raw[20:40]))) == 20
        assert proofs(served) == 2
        switch.app = build_app(home.content(), None, home.door(door.audience))  # a restart
        assert len(dict(peer.get_many(raw[40:60]))) == 20
        assert len(list(peer.get_dag(talk.sealed.pinset))) == len(talk.withheld())
        assert proofs(served) == 3


@pytest.fixture
def block_by_block(monkeypatch: pytest.MonkeyPatch, home: Home) -> SealedTalk:
    """A conversation that comes without streams, which go on to their end: a server is asked after its restart, too.

    Each of over 120 sealed blocks is a request.
    """
    monkeypatch.setattr(HttpPeer, "has_dag", False)
    return home.seal("short", blocks=60)


def test_a_restart_in_the_middle_of_a_fetch(
    home: Home, block_by_block: SealedTalk, theirs: Index, peer_at: PeerAt
) -> None:
    with guarding(home) as (served, door, switch):
        switch.later, switch.left = build_app(home.content(), None, home.door(door.audience)), 100
        into = MemoryStore()
        assert block_by_block.fetch(into, theirs, [peer_at(served.url)]).root == block_by_block.plain
        assert contents(into, block_by_block.plain) == contents(home.store, block_by_block.plain)
        assert (switch.later, proofs(served)) == (None, 2)


def test_a_server_that_lets_nobody_in_any_more_is_what_is_told(
    home: Home, block_by_block: SealedTalk, theirs: Index, peer_at: PeerAt, tmp_path: Path
) -> None:
    """And not that some other server lacks the blocks."""
    with (
        guarding(home) as (served, _, switch),
        Index(tmp_path / "empty") as empty,
        running(build_app(Home(MemoryStore(), empty).content())) as lacking,
    ):
        switch.later, switch.left = build_app(home.content(), None, home.door("https://elsewhere.example")), 100
        for order in (1, -1):
            with pytest.raises(ProofRejected) as caught:
                block_by_block.fetch(MemoryStore(), theirs, [peer_at(each.url) for each in (served, lacking)][::order])
            assert "elsewhere.example" in caught.value.message
        assert (switch.later, proofs(served)) == (None, 1)


@contextmanager
def relaying(to: str) -> Iterator[Served]:
    """Serve as somebody in the middle does: pass questions on to another, and its answers back."""
    import http.client

    def relay(request: Request, body: bytes) -> Response:
        connection = http.client.HTTPConnection(to.removeprefix("http://"), timeout=20)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        connection.request(request.method, target, body or None, {"Accept": request.headers.get("accept", "")})
        got = connection.getresponse()
        headers = {key: value for key, value in got.getheaders() if key.lower() in ("content-type", "www-authenticate")}
        answer = Response(got.read(), got.status, headers)
        connection.close()
        return answer

    async def pass_on(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(relay, request, await request.body())

    with running(Starlette(routes=[Route("/{path:path}", pass_on, methods=["GET", "POST"])])) as served:
        yield served


def test_a_relay_in_the_middle_gets_no_proof(home: Home, talk: SealedTalk, theirs: Index, peer_at: PeerAt) -> None:
    with guarding(home) as (served, door, _), relaying(served.url) as relay:
        with pytest.raises(ProofRejected) as caught:
            talk.fetch(MemoryStore(), theirs, [peer_at(relay.url)])
        assert caught.value.data["reason"] == "audience"
        assert served.url in caught.value.message
        assert relay.url in caught.value.message
        assert f"{ASK_AT}?" in relay.requests
        assert (proofs(relay), proofs(served), door.open_count) == (0, 0, 1)
        assert talk.fetch(MemoryStore(), theirs, [peer_at(served.url)]).root == talk.plain


def test_a_server_that_goes_by_another_name_is_refused_until_it_is_named_so(
    home: Home, talk: SealedTalk, theirs: Index, peer_at: PeerAt
) -> None:
    with guarding(home, home.door("https://kv.example")) as (served, door, _):
        with pytest.raises(ProofRejected) as caught:
            talk.fetch(MemoryStore(), theirs, [peer_at(served.url)])
        assert "--public-url" in caught.value.hint
        door.audience = served.url
        assert talk.fetch(MemoryStore(), theirs, [peer_at(served.url)]).root == talk.plain


def test_clocks_may_differ_by_a_minute_and_not_by_more(home: Home, talk: SealedTalk, peer_at: PeerAt) -> None:
    with guarding(home) as (served, _, _):
        for skew_s, refused in ((-60, False), (-400, True), (110, False), (130, True)):
            prover = replace(talk.prover(), now_s=lambda skew_s=skew_s: home.clock.now_s + skew_s)
            peer = peer_at(served.url)
            peer.prove_with(prover)
            if refused:
                with pytest.raises(ProofRejected) as caught:
                    dict(peer.get_many([talk.sealed.manifest]))
                assert "clock" in caught.value.hint
            else:
                assert dict(peer.get_many([talk.sealed.manifest]))


def test_the_ring_that_counts_is_that_of_the_grant(home: Home, theirs: Index, peer_at: PeerAt) -> None:
    talk = home.seal("ring", readers=[READER, *MORE], ring=True)
    plain = home.seal("plain")
    with guarding(home) as (served, _, _):
        for reader in (READER, MORE[1]):
            assert talk.fetch(MemoryStore(), theirs, [peer_at(served.url)], reader, ring=True).root == talk.plain
        assert proofs(served) == 2
        with pytest.raises(ProofRejected) as caught:
            plain.fetch(MemoryStore(), theirs, [peer_at(served.url)], ring=True)
        assert caught.value.data["reason"] == "no-ring"
        small = make_ring([each.public().ring for each in (READER, *MORE)])
        with pytest.raises(ProofRejected):  # a server that would have the reader hide among others
            Terms.of(talk.grant, ring=small)
        outsider = Reader.of_ring(talk.root, talk.grant, ring_of(talk), OTHER, home.clock)
        peer = peer_at(served.url)
        peer.prove_with(outsider)
        with pytest.raises(ProofRejected):
            dict(peer.get_many([talk.sealed.manifest]))


def ring_of(talk: SealedTalk) -> Ring:
    assert talk.report.ring is not None
    return Ring.decode(talk.home.store.get(talk.report.ring))


def test_a_ring_of_too_few_is_refused(home: Home) -> None:
    with pytest.raises(MalformedNode, match="4 to 1024"):
        home.seal("few", readers=[READER, OTHER], ring=True)


def test_a_reader_of_the_first_epoch_gets_nothing_of_the_second(home: Home, talk: SealedTalk, peer_at: PeerAt) -> None:
    later = talk.rotated()
    key = open_grant(talk.grant, READER)
    with guarding(home) as (served, _, _):
        peer = peer_at(served.url)
        peer.prove_with(Reader.of_key(later.root, later.grant, key, home.clock))
        with pytest.raises(ProofRejected):
            dict(peer.get_many([later.sealed.manifest]))
        assert proofs(served) == 0
        earlier = peer_at(served.url)
        earlier.prove_with(talk.prover())
        assert dict(earlier.get_many([talk.sealed.manifest]))  # what was published stays published
        with pytest.raises(AccessDenied):
            dict(earlier.get_many([later.sealed.manifest]))


class Strange:
    """A server that asks for proof, and then says what a test wants."""

    def __init__(self, asked: Response, proven: Response) -> None:
        self.asked, self.proven = asked, proven
        self.tokens: list[str | None] = []

    def app(self) -> Starlette:
        def block(request: Request) -> Response:
            self.tokens.append(request.headers.get("authorization"))
            return Response(b"", 401, {"WWW-Authenticate": WANTS})

        routes = [
            Route(ASK_AT, lambda _: self.asked, methods=["POST"]),
            Route(PROVE_AT, lambda _: self.proven, methods=["POST"]),
            Route("/ipfs/{cid}", block),
        ]
        return Starlette(routes=routes)


def json(item: object) -> Response:
    return Response(encode(item))  # type: ignore[arg-type]


class Willing:
    """A prover who proves anything to anybody."""

    scheme = "any"

    def __init__(self, root: Cid) -> None:
        self.root = root

    def answer(self, challenge: bytes, audience: str) -> bytes:
        return b"proof"


GOOD = json({"challenge": b"x"})


@pytest.mark.parametrize(("asked", "proven", "error"), [
    (Response(status_code=404), GOOD, AccessDenied),
    (Response(b"<html>"), GOOD, PeerMisbehaved),
    (json({"challenge": "x"}), GOOD, PeerMisbehaved),
    (json([1]), GOOD, AccessDenied),
    (json({"challenge": b"x" * 8000}), GOOD, CyberKVError),
    (Response(b"no\x1b[31m", 403), GOOD, ProofRejected),
    (Response(status_code=500), GOOD, PeerUnreachable),
    (Response(status_code=429), GOOD, PeerUnreachable),
    (RedirectResponse("http://127.0.0.1:1/"), GOOD, ProofRejected),
    (GOOD, Response(status_code=403), ProofRejected),
    (GOOD, json({"token": "a" * 20 + "\r\nX-Evil: 1"}), PeerMisbehaved),
    (GOOD, json({"token": "short"}), PeerMisbehaved),
    (GOOD, json({"token": b"a" * 43}), PeerMisbehaved),
    (GOOD, json({"token": "a" * 43}), AccessDenied),
])  # fmt: skip
def test_servers_that_ask_for_proof_and_do_not_mean_it(
    peer_at: PeerAt, asked: Response, proven: Response, error: type[CyberKVError]
) -> None:
    strange = Strange(asked, proven)
    root = Cid.of(b"root", "dag-cbor", "sha2-256")
    with running(strange.app()) as served:
        peer = peer_at(served.url, replace(CALM, wait_s=0.0))
        peer.prove_with(Willing(root))
        with pytest.raises(error) as caught:
            dict(peer.get_many([root]))
        assert "\x1b" not in caught.value.message
    good = proven.body == json({"token": "a" * 43}).body
    assert strange.tokens == ([None, f"Bearer {'a' * 43}"] if good else [None])


def test_a_token_does_not_follow_a_redirect(home: Home, talk: SealedTalk) -> None:
    seen: list[str | None] = []
    root = talk.root

    def away(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return Response(home.store.get(root), headers={"Content-Type": RAW})

    with ExitStack() as stack:
        there = stack.enter_context(running(Starlette(routes=[Route("/ipfs/{cid}", away)])))
        other = there.url.replace("127.0.0.1", "localhost")
        strange = Strange(GOOD, json({"token": "a" * 43}))
        app = strange.app()
        served = stack.enter_context(running(app))
        app.router.routes.insert(0, Route("/ipfs/{cid}", redirecting(strange, other)))
        peer = stack.enter_context(HttpPeer(served.url, patience=CALM, reach=Reach.to(("localhost",))))
        peer.prove_with(Willing(root))
        assert dict(peer.get_many([root])) == {root: home.store.get(root)}
        assert strange.tokens == [None, f"Bearer {'a' * 43}"]
        assert seen == [None]
        assert asking(there.url)(f"/ipfs/{root}", authorization="Bearer x").status == 200
        assert seen[-1] == "Bearer x"


def redirecting(strange: Strange, other: str) -> Callable[[Request], Response]:
    def block(request: Request) -> Response:
        strange.tokens.append(request.headers.get("authorization"))
        if strange.tokens[-1] is None:
            return Response(b"", 401, {"WWW-Authenticate": WANTS})
        return RedirectResponse(f"{other}{request.url.path}?{request.url.query}")

    return block
