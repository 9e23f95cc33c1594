"""The gateway as a stranger's program sees it: status, headers and bytes, over a plain HTTP connection."""

import http.client
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.chain import block_cids, closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.app import PROBE
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block, links
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.peer import ABSENT
from tests.wire.asking import BROWSER, CAR, DAG_CBOR, RAW, Ask, asking
from tests.wire.conftest import Served, running
from tests.wire.synthetic import contents, conversation


@pytest.fixture
def ask(store: MemoryStore, public: Cid, publish: Callable[..., Served]) -> Ask:
    return asking(publish(store, public).url)


def test_a_raw_block(ask: Ask, store: MemoryStore, public: Cid) -> None:
    answer = ask(f"/ipfs/{public}?format=raw")
    assert answer.status == 200
    assert answer.body == store.get(public)
    cross_origin = {name for name in answer.headers if name.startswith("access-control-")}
    assert {name: value for name, value in answer.headers.items() if name not in cross_origin} == {
        "content-type": RAW,
        "content-length": str(len(answer.body)),
        "content-disposition": f'attachment; filename="{public}.bin"',
        "content-security-policy": "default-src 'none'; sandbox",
        "accept-ranges": "bytes",
        "etag": f'"{public}.raw"',
        "cache-control": "public, max-age=29030400, immutable",
        "ipfs-uri": f"ipfs://{public}",
        "x-content-type-options": "nosniff",
        "x-ipfs-path": f"/ipfs/{public}",
        "x-ipfs-roots": str(public),
        "vary": "Accept",
    }
    assert ask(f"/ipfs/{public}", accept=RAW).body == answer.body
    assert ask(f"/ipfs/{public}", accept=RAW).headers["content-location"] == f"/ipfs/{public}?format=raw"


def test_every_block_of_what_was_published(ask: Ask, store: MemoryStore, public: Cid) -> None:
    for cid, data in contents(store, public).items():
        assert ask(f"/ipfs/{cid}?format=raw").body == data


def test_a_car_of_everything_below(ask: Ask, store: MemoryStore, public: Cid) -> None:
    answer = ask(f"/ipfs/{public}?format=car")
    assert answer.status == 200
    assert answer.headers["content-type"] == f"{CAR}; version=1; order=dfs; dups=n"
    assert answer.headers["content-disposition"] == f'attachment; filename="{public}.car"'
    assert answer.headers["accept-ranges"] == "none"
    reader = read_car(io.BytesIO(answer.body))
    assert reader.roots == (public,)
    got = list(reader)
    assert dict(got) == contents(store, public)
    assert len(got) == len(dict(got))
    assert [cid for cid, _ in got] == depth_first(store, public)


def depth_first(store: MemoryStore, root: Cid) -> list[Cid]:
    order: dict[Cid, None] = {}

    def visit(cid: Cid) -> None:
        if cid not in order:
            order[cid] = None
            for link in links(store.get(cid)) if cid.codec == "dag-cbor" else []:
                visit(link)

    visit(root)
    return list(order)


def test_a_path_leads_from_a_conversation_to_a_leaf(ask: Ask, store: MemoryStore, public: Cid) -> None:
    block = [*block_cids(store, load_root(store, public))][2]
    leaf = Block.decode(store.get(block)).kv[1]
    answer = ask(f"/ipfs/{public}/segments/0/links/2/to/kv/1")
    assert (answer.status, answer.body) == (200, store.get(leaf))
    assert answer.headers["x-ipfs-roots"].split(",") == [
        str(cid) for cid in (public, load_root(store, public).segments[0], block, leaf)
    ]
    for other in ("segments/1", "segments/0/links/3/to", "segments/0/links/2/to/kv/2"):
        assert ask(f"/ipfs/{public}/{other}").status == 404


@pytest.mark.parametrize("scope", ["block", "entity"])
def test_a_car_of_one_block(ask: Ask, store: MemoryStore, public: Cid, scope: str) -> None:
    answer = ask(f"/ipfs/{public}?format=car&dag-scope={scope}")
    assert list(read_car(io.BytesIO(answer.body))) == [(public, store.get(public))]


def test_a_car_of_a_segment_and_of_a_leaf(ask: Ask, store: MemoryStore, public: Cid) -> None:
    segment = load_root(store, public).segments[0]
    for cid in (segment, list(closure(store, public))[-1]):
        got = dict(read_car(io.BytesIO(ask(f"/ipfs/{cid}?format=car").body)))
        assert list(got) == depth_first(store, cid)


@pytest.mark.parametrize("form", ["format=raw", "format=car", "format=car&dag-scope=block"])
def test_head_is_get_without_the_body(ask: Ask, public: Cid, form: str) -> None:
    got, head = (ask(f"/ipfs/{public}?{form}", method=method) for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (200, b"")
    for answer in (got, head):
        answer.headers.pop("transfer-encoding", None)
    assert head.headers == got.headers


@pytest.mark.parametrize("form", ["format=raw", "format=car"])
def test_what_the_reader_has_is_not_sent_again(ask: Ask, public: Cid, form: str) -> None:
    target = f"/ipfs/{public}?{form}"
    tag = ask(target).headers["etag"]
    for known in (tag, f'"other", {tag}', "*", tag.removeprefix("W/")):
        answer = ask(target, if_none_match=known)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    other = ask(f"/ipfs/{public}?format=car&dag-scope=block").headers["etag"]
    assert ask(target, if_none_match=other).status == 200


def test_only_if_cached(ask: Ask, public: Cid) -> None:
    for method in ("GET", "HEAD"):
        for form in ("raw", "car"):
            answer = ask(f"/ipfs/{public}?format={form}", method=method, cache_control="only-if-cached")
            assert answer.status == 200
            answer = ask(f"/ipfs/{ABSENT}?format={form}", method=method, cache_control="only-if-cached")
            assert answer.status == 412


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_probe(ask: Ask, method: str) -> None:
    raw = ask(f"/ipfs/{PROBE}?format=raw", method=method)
    assert (raw.status, raw.body, raw.headers["content-type"]) == (200, b"", RAW)
    car = ask(f"/ipfs/{PROBE}", method=method, accept=CAR)
    assert (car.status, car.headers["content-type"]) == (200, f"{CAR}; version=1; order=dfs; dups=n")
    if method == "GET":
        header = car.body[1:]
        assert car.body[0] == len(header) == 25
        assert header == bytes.fromhex("a265726f6f747381d82a4500" + "01550000" + "6776657273696f6e01")


@pytest.mark.parametrize("accept", ["", "*/*", "image/png", BROWSER])
def test_without_a_wish_a_block_comes_as_it_is(ask: Ask, store: MemoryStore, public: Cid, accept: str) -> None:
    answer = ask(f"/ipfs/{public}", accept=accept)
    assert (answer.status, answer.headers["content-type"]) == (200, DAG_CBOR)
    assert answer.body == store.get(public)
    leaf = list(closure(store, public))[-1]
    answer = ask(f"/ipfs/{leaf}", accept=accept)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
    assert answer.body == store.get(leaf)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE"])
def test_nothing_but_reading(ask: Ask, public: Cid, method: str) -> None:
    answer = ask(f"/ipfs/{public}?format=raw", method=method)
    assert answer.status == 405
    assert sorted(answer.headers["allow"].split(", ")) == ["GET", "HEAD", "OPTIONS"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 404), ("/ipfs", 404), ("/ipfs/", 404), ("/ipfs/not-a-cid", 400),
     ("/ipfs/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd", 404),
     ("/ipfs/bafkqaa", 400), ("/ipfs/%00", 400), ("/ipfs/..%2f..%2fetc%2fpasswd", 400), (f"/ipfs/{ABSENT}/", 404),
     (f"/ipfs/{ABSENT}/kv/0", 404), ("/api/v0/id", 404), ("/ipns/x", 404)],
)  # fmt: skip
def test_other_addresses(ask: Ask, path: str, status: int) -> None:
    assert ask(f"{path}?format=raw").status == status


# What was published and is damaged or lost since.


def test_damaged_bytes_are_never_sent(ask: Ask, store: MemoryStore, public: Cid) -> None:
    leaf = list(closure(store, public))[-1]
    wrong = bytes(len(store.get(leaf)))
    store.delete_many([leaf])
    store.put_many([(leaf, wrong)], hashed=True)
    for form in ("format=raw", "format=car"):
        answer = ask(f"/ipfs/{leaf}?{form}")
        assert answer.status == 500
        assert wrong[:64] not in answer.body
    with pytest.raises(http.client.IncompleteRead):
        ask(f"/ipfs/{public}?format=car")


def test_a_car_that_cannot_be_finished_ends_visibly_short(ask: Ask, store: MemoryStore, public: Cid) -> None:
    store.delete_many([list(closure(store, public))[-1]])
    with pytest.raises(http.client.IncompleteRead):
        ask(f"/ipfs/{public}?format=car")
    assert ask(f"/ipfs/{public}?format=raw").status == 200


def test_published_and_lost_is_not_found(ask: Ask, store: MemoryStore, public: Cid) -> None:
    store.delete_many([public])
    for method in ("GET", "HEAD"):
        for form in ("raw", "car"):
            assert ask(f"/ipfs/{public}?format={form}", method=method).status == 404


def test_a_large_car_arrives_in_pieces(publish: Callable[..., Served]) -> None:
    store, root = conversation(blocks=600)
    served = publish(store, root)
    with closing(http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", f"/ipfs/{root}?format=car")
        answer = connection.getresponse()
        first = answer.read1(1 << 20)
        rest = answer.read()
    assert 0 < len(first) < len(first + rest) <= served.body_bytes
    assert dict(read_car(io.BytesIO(first + rest))) == contents(store, root)


SERVER = """
import sys
from pathlib import Path
from cyberkv.cybergraph.gateway import Published, build_app, serve
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import MemoryStore
with Index(Path(sys.argv[1])) as index:
    try:
        serve(build_app(Published(MemoryStore(), index)), "127.0.0.1", 0, lambda url: print(url, flush=True))
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_the_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "index")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        with closing(connection):
            connection.request("HEAD", f"/ipfs/{PROBE}?format=raw")
            assert connection.getresponse().status == 200
            os.kill(child.pid, number)
            out, err = child.communicate(timeout=30)
    assert err == ""
    if number == signal.SIGINT:
        assert (child.returncode, out) == (0, "stopped\n")
    else:
        assert child.returncode == -signal.SIGTERM


def test_an_address_of_version_six(there: Index) -> None:
    store, root = conversation(blocks=1)
    there.publish(root, closure(store, root))
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    with running(build_app(Published(store, there)), host="::1") as served, HttpPeer(served.url) as peer:
        assert served.url.startswith("http://[::1]:")
        assert dict(peer.get_many([root])) == {root: store.get(root)}


def test_running_twice_in_one_process(there: Index) -> None:
    same = build_app(Published(MemoryStore(), there))
    with running(same) as one, running(same) as two:
        assert one.url != two.url
