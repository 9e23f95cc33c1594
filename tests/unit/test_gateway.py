import socket

import pytest
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import BlockNotFound, CyberKVError
from cyberkv.cybergraph.gateway import GatewayServer, build_app
from cyberkv.cybergraph.gateway.content import Published
from cyberkv.cybergraph.gateway.negotiate import Wanted, negotiate
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.synthetic import conversation, record

RAW, CAR = "application/vnd.ipld.raw", "application/vnd.ipld.car"


@pytest.mark.parametrize(
    ("query", "accept", "wanted"),
    [
        ("format=raw", "", Wanted("raw", "block", dups=False, by_accept=False)),
        ("format=car", "", Wanted("car", "all", dups=False, by_accept=False)),
        ("format=car", RAW, Wanted("car", "all", dups=False, by_accept=False)),
        ("format=raw", CAR + "; dups=y", Wanted("raw", "block", dups=False, by_accept=False)),
        ("", RAW, Wanted("raw", "block", dups=False, by_accept=True)),
        ("", CAR, Wanted("car", "all", dups=False, by_accept=True)),
        ("", f"{CAR}; version=1; order=dfs; dups=y", Wanted("car", "all", dups=True, by_accept=True)),
        ("", f"{CAR};order=unk", Wanted("car", "all", dups=False, by_accept=True)),
        ("", f"text/html, */*;q=0.1, {RAW};q=0.5", Wanted("raw", "block", dups=False, by_accept=True)),
        ("", f"{RAW};q=0.5, {CAR};q=0.7", Wanted("car", "all", dups=False, by_accept=True)),
        ("", f"{RAW}, {CAR}", Wanted("raw", "block", dups=False, by_accept=True)),
        ("dag-scope=block", CAR, Wanted("car", "block", dups=False, by_accept=True)),
        ("dag-scope=entity", CAR, Wanted("car", "block", dups=False, by_accept=True)),
        ("format=car&entity-bytes=0:10", "", Wanted("car", "block", dups=False, by_accept=False)),
        ("car-dups=y&car-order=dfs&car-version=1", f"{CAR};dups=n", Wanted("car", "all", dups=True, by_accept=True)),
        ("format=raw&dag-scope=nonsense", "", Wanted("raw", "block", dups=False, by_accept=False)),
    ],
)
def test_what_is_wanted(query: str, accept: str, wanted: Wanted) -> None:
    assert negotiate(QueryParams(query), accept) == wanted


@pytest.mark.parametrize(
    ("query", "accept", "status"),
    [
        ("", "", 400),
        ("", "*/*", 400),
        ("", "text/html", 406),
        ("", f"{RAW};q=0", 400),
        ("", f"{RAW};q=lots", 400),
        ("format=tar", RAW, 406),
        ("format=", RAW, 406),
        ("format=dag-json", "", 406),
        ("format=car&dag-scope=most", "", 400),
        ("", f"{CAR};version=2", 406),
        ("", f"{CAR};order=random", 406),
        ("", f"{CAR};dups=maybe", 406),
        ("format=car&car-version=2", "", 406),
    ],
)
def test_what_cannot_be_had(query: str, accept: str, status: int) -> None:
    with pytest.raises(HTTPException) as caught:
        negotiate(QueryParams(query), accept)
    assert caught.value.status_code == status
    assert "text" not in caught.value.detail


def test_each_form_of_an_answer_has_its_own_tag() -> None:
    forms = ["format=raw", "format=car", "format=car&dag-scope=block", "format=car&car-dups=y"]
    tags = {negotiate(QueryParams(form), "").etag("cid") for form in forms}
    assert len(tags) == len(forms)


def walk(content: Published, root: Cid, *, dups: bool = False) -> list[tuple[Cid, Buffer]]:
    return [block for run in content.graph(root, dups=dups) for block in run]


def test_a_graph_is_the_closure(index: Index) -> None:
    store, root = conversation(blocks=3)
    index.publish(root, closure(store, root))
    walked = walk(Published(store, index), root)
    assert sorted(cid for cid, _ in walked) == sorted(closure(store, root))
    assert walked[0][0] == root
    for cid, data in walked:
        cid.verify(data)


def test_with_dups_a_block_comes_as_often_as_it_is_linked(index: Index) -> None:
    store, root = conversation(blocks=3)
    index.publish(root, closure(store, root))
    model = load_root(store, root).model
    walked = [cid for cid, _ in walk(Published(store, index), root, dups=True)]
    assert walked.count(model) == 5  # by the root, its one segment and three blocks


def test_a_graph_leaves_out_a_parent_that_is_private(index: Index) -> None:
    store, parent = conversation(blocks=2)
    root = record(store, blocks=3, seed="a", parent=parent)
    content = Published(store, index)
    index.publish(root, closure(store, root))
    private = set(closure(store, parent)) - set(closure(store, root))
    assert parent in private
    assert not private & {cid for cid, _ in walk(content, root)}
    index.publish(parent, closure(store, parent))
    assert private <= {cid for cid, _ in walk(content, root)}


def test_a_lost_block_ends_the_graph(index: Index) -> None:
    store, root = conversation(blocks=3)
    order = list(closure(store, root))
    index.publish(root, order)
    store.delete_many([order[-1]])
    with pytest.raises(BlockNotFound):
        walk(Published(store, index), root)


def test_private_is_the_same_as_absent(index: Index) -> None:
    store, root = conversation(blocks=1)
    content = Published(store, index)
    for cid in closure(store, root):
        assert store.has(cid)
        assert content.size_bytes(cid) is None
        with pytest.raises(BlockNotFound):
            content.get(cid)
    assert walk(content, root) == []


def test_small_answers_do_not_wait_for_the_reader(index: Index) -> None:
    server = GatewayServer(build_app(MemoryStore(), index), "127.0.0.1", 0, lambda _: None)
    with server._socket as listening:  # what is set here holds for every connection
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("port", [1 << 16, -1])
def test_an_impossible_port_is_said_so(index: Index, port: int) -> None:
    with pytest.raises(CyberKVError, match="cannot listen"):
        GatewayServer(build_app(MemoryStore(), index), "127.0.0.1", port, print)


def test_a_port_that_is_taken_is_said_so(index: Index) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CyberKVError, match="cannot listen"):
        GatewayServer(build_app(MemoryStore(), index), "127.0.0.1", taken.getsockname()[1], print)
