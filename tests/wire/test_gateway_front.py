"""`/metrics` and `/healthz`, beside the gateway: numbers for whoever runs it, and nothing that names anything."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import Corrupt
from cyberkv.cybergraph.foreign import AnyCid
from cyberkv.cybergraph.gateway import Published, build_app, limits
from cyberkv.cybergraph.gateway.front import guarded
from cyberkv.cybergraph.gateway.metrics import CountedContent, Metrics
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.conftest import Served, running
from tests.wire.synthetic import contents, conversation
from tests.wire.test_gateway_limits import ELSEWHERE, seen_from

Ask = Callable[..., tuple[int, bytes]]


class Failing(Published):
    """A home whose store can be made to fail."""

    fails = False

    def roots(self) -> list[AnyCid]:
        if self.fails:
            raise Corrupt("the store is gone")
        return super().roots()


@pytest.fixture
def shown(there: Index) -> tuple[dict[Cid, bytes], Cid, Failing]:
    store, root = conversation(blocks=3)
    blocks = contents(store, root)
    there.publish(root, blocks)
    return blocks, root, Failing(store, there)


@pytest.fixture
def served(shown: tuple[dict[Cid, bytes], Cid, Failing]) -> Iterator[Served]:
    with running(guarded(build_app(shown[2]), shown[2], Metrics())) as served:
        yield served


@pytest.fixture
def ask(shown: tuple[dict[Cid, bytes], Cid, Failing], request: pytest.FixtureRequest) -> Iterator[Ask]:
    metrics = Metrics()
    metrics.watch("scrub_blocks", "Blocks read", lambda: 7)
    content = CountedContent(shown[2], metrics)
    app = guarded(build_app(content), content, metrics, ["Here.example"])
    with running(app) as near, running(seen_from(app, ELSEWHERE)) as far:

        def send(path: str, *, elsewhere: bool = False, method: str = "GET", **headers: str) -> tuple[int, bytes]:
            address = (far if elsewhere else near).url.removeprefix("http://")
            with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
                connection.request(method, path, headers={key.replace("_", "-"): headers[key] for key in headers})
                answer = connection.getresponse()
                return answer.status, answer.read()

        yield send


def value(text: bytes, name: str) -> float:
    return sum(float(line.split()[1]) for line in text.decode().splitlines() if line.split()[0] == name)


def test_what_is_counted(ask: Ask, shown: tuple[dict[Cid, bytes], Cid, Failing]) -> None:
    blocks, root, _ = shown
    before = ask("/metrics")[1]
    assert value(before, 'cyberkv_gateway_requests_total{form="raw",status="200"}') == 0
    for _ in range(3):
        ask(f"/ipfs/{root}?format=raw")
    _, car = ask(f"/ipfs/{root}?format=car")
    ask(f"/ipfs/{Cid.of(b'absent', 'raw', 'blake3')}?format=raw")
    status, text = ask("/metrics")
    assert status == 200
    assert value(text, 'cyberkv_gateway_requests_total{form="raw",status="200"}') == 3
    assert value(text, 'cyberkv_gateway_requests_total{form="car",status="200"}') == 1
    assert value(text, 'cyberkv_gateway_requests_total{form="text",status="404"}') == 1
    assert value(text, 'cyberkv_gateway_sent_bytes_total{form="raw"}') == 3 * len(blocks[root])
    assert value(text, 'cyberkv_gateway_sent_bytes_total{form="car"}') == len(car)
    assert value(text, 'cyberkv_gateway_blocks_total{way="single"}') == 3
    assert value(text, 'cyberkv_gateway_blocks_total{way="stream"}') == len(blocks)
    assert value(text, 'cyberkv_gateway_running{form="car"}') == 0
    assert value(text, "cyberkv_scrub_blocks") == 7


def test_refusals_are_counted(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BURST_REQUESTS", 2.0)
    monkeypatch.setattr(limits, "RATE_REQUESTS_S", 0.0)
    assert [ask("/ipfs/x", elsewhere=True)[0] for _ in range(4)] == [400, 400, 429, 429]
    assert value(ask("/metrics")[1], 'cyberkv_gateway_refused_total{reason="rate"}') == 2


def test_no_number_names_anything(ask: Ask, shown: tuple[dict[Cid, bytes], Cid, Failing]) -> None:
    blocks, root, _ = shown
    for cid in blocks:
        ask(f"/ipfs/{cid}?format=raw")
    ask(f"/ipfs/{root}/segments/0/secret-name", elsewhere=True)
    ask("/secret-name?format=secret-name", user_agent="secret-name", accept="secret/name")
    text = ask("/metrics")[1].decode()
    assert "secret" not in text
    assert ELSEWHERE not in text
    assert "127.0.0.1" not in text
    assert not any(str(cid) in text for cid in blocks)
    assert ask("/secret-name", elsewhere=False)[0] == 404


def test_numbers_are_for_this_machine_alone(ask: Ask) -> None:
    assert ask("/metrics")[0] == 200
    absent = ask("/none", elsewhere=True)
    assert absent[0] == ask("/ipfs", elsewhere=True)[0] == 404
    assert ask("/metrics", elsewhere=True) == absent
    for header in ("x_forwarded_for", "forwarded", "via", "x_real_ip"):  # a proxy on this machine asks for somebody
        assert ask("/metrics", **{header: "192.0.2.9"}) == absent


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:8480", 200), ("127.8.9.1", 200), ("[::1]:8480", 200),
     ("[::1]", 200), ("here.example:443", 200), ("elsewhere.example", 404), ("elsewhere.example:8480", 404), ("", 404),
     ("127.0.0.1.elsewhere.example", 404), ("localhost.elsewhere.example", 404), ("192.0.2.1", 404), ("[::2]", 404),
     ("::1", 404), ("[", 404)],
)  # fmt: skip
def test_numbers_are_not_for_whoever_gives_this_machine_a_name_of_their_own(ask: Ask, host: str, status: int) -> None:
    assert ask("/metrics", host=host)[0] == status
    assert ask("/healthz", host=host)[0] == 200


def test_numbers_are_not_for_the_scripts_of_other_sites(served: Served) -> None:
    """Which a browser on this machine runs."""
    with closing(http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)) as connection:
        allowed = []
        for path in ("/metrics", "/healthz"):
            connection.request("GET", path, headers={"Origin": "https://elsewhere.example"})
            answer = connection.getresponse()
            answer.read()
            allowed.append(answer.getheader("access-control-allow-origin"))
    assert allowed == [None, "*"]


def test_health_follows_the_store(ask: Ask, shown: tuple[dict[Cid, bytes], Cid, Failing]) -> None:
    for elsewhere in (False, True):
        assert ask("/healthz", elsewhere=elsewhere) == (200, b"ok\n")
        assert ask("/healthz", elsewhere=elsewhere, method="HEAD") == (200, b"")
        assert ask("/healthz", elsewhere=elsewhere, method="POST")[0] == 405
    shown[2].fails = True
    status, body = ask("/healthz")
    assert status == 503
    assert b"gone" not in body


def test_an_empty_home_is_healthy(there: Index) -> None:
    metrics = Metrics()
    content = Published(MemoryStore(), there)
    with (
        running(guarded(build_app(content), content, metrics)) as served,
        closing(http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)) as connection,
    ):
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
