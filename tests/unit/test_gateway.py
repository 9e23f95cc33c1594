"""Content: what a gateway may show, and the server that shows it."""

import socket
from pathlib import Path

import pytest

from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import BlockNotFound, CyberKVError
from cyberkv.cybergraph.gateway import GatewayServer, Published, Several, build_app
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.synthetic import conversation, record


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


def test_roots_come_newest_first(index: Index) -> None:
    store = MemoryStore()
    made = [
        record(store, blocks=blocks, created=created) for blocks, created in ((1, "2026-01"), (2, "2026-03"), (3, ""))
    ]
    private = record(store, blocks=4, created="2026-04")
    content = Published(store, index)
    assert content.roots() == []
    for root in made:
        index.publish(root, closure(store, root))
    assert content.roots() == [made[1], made[0], made[2]]
    assert private not in content.roots()
    store.delete_many([made[0]])
    assert content.roots() == [made[1], made[2]]


def test_several_contents_side_by_side(index: Index, tmp_path: Path) -> None:
    with Index(tmp_path / "other") as other_index:
        contents = []
        for name, here in (("first", index), ("second", other_index)):
            store, root = conversation(blocks=2, seed=name)
            here.publish(root, closure(store, root))
            contents.append((root, Published(store, here)))
        check_side_by_side(*contents)


def check_side_by_side(one_first: tuple[Cid, Published], two_second: tuple[Cid, Published]) -> None:
    (one, first), (two, second) = one_first, two_second
    both = Several([first, second])
    assert both.roots() == [one, two]
    for root, alone, other in ((one, first, second), (two, second, first)):
        assert both.get(root) == alone.get(root)
        assert both.size_bytes(root) == alone.size_bytes(root)
        assert [*both.graph(root, dups=False)] == [*alone.graph(root, dups=False)]
        assert other.size_bytes(root) is None
    absent = Cid.of(b"", "raw", "blake3")
    assert both.size_bytes(absent) is None
    with pytest.raises(BlockNotFound):
        both.get(absent)
    with pytest.raises(BlockNotFound):
        next(both.graph(absent, dups=False))


def test_small_answers_do_not_wait_for_the_reader(index: Index) -> None:
    server = GatewayServer(build_app(Published(MemoryStore(), index)), "127.0.0.1", 0, lambda _: None)
    with server._socket as listening:  # what is set here holds for every connection
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("port", [1 << 16, -1])
def test_an_impossible_port_is_said_so(index: Index, port: int) -> None:
    with pytest.raises(CyberKVError, match="cannot listen"):
        GatewayServer(build_app(Published(MemoryStore(), index)), "127.0.0.1", port, print)


def test_a_port_that_is_taken_is_said_so(index: Index) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CyberKVError, match="cannot listen"):
        GatewayServer(build_app(Published(MemoryStore(), index)), "127.0.0.1", taken.getsockname()[1], print)
