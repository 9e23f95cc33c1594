import pytest

from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BadReference,
    BlockNotFound,
    DigestMismatch,
    LimitExceeded,
    MalformedNode,
    NotPublic,
)
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block, Conversation, links
from cyberkv.cybergraph.store import MemoryStore, ReadOnlyStore
from cyberkv.cybergraph.transfer import plan_publish, publish_here
from tests.wire.synthetic import conversation, other_model, record, sum_bytes


def rewritten(store: MemoryStore, root: Cid, **changes: object) -> Cid:
    fields = {name: getattr(load_root(store, root), name) for name in Conversation.__slots__}
    return store.put_node(Conversation(**{**fields, **changes}))


def test_the_default_is_private(index: Index) -> None:
    store, root = conversation()
    with pytest.raises(NotPublic, match=str(root)) as caught:
        plan_publish(store, index, root, None)
    assert caught.value.exit_code == 5
    assert plan_publish(store, index, root, "public").visibility == "public"


def test_privacy_is_decided_before_anything_is_read(index: Index) -> None:
    absent = conversation()[1]
    with pytest.raises(NotPublic):
        plan_publish(MemoryStore(), index, absent, None)
    with pytest.raises(BlockNotFound):
        plan_publish(MemoryStore(), index, absent, "public")


@pytest.mark.parametrize(("blocks", "tail_tokens"), [(0, 0), (0, 1), (3, 2), (257, 0)])
def test_a_plan_lists_exactly_the_closure(index: Index, blocks: int, tail_tokens: int) -> None:
    store, root = conversation(blocks=blocks, tail_tokens=tail_tokens)
    plan = plan_publish(store, index, root, "public")
    assert sorted(plan.cids) == sorted(closure(store, root))
    assert len(plan.cids) == len(set(plan.cids)) == plan.blocks
    assert plan.bytes == sum_bytes(store, plan.cids)
    assert plan.leaf_bytes == load_root(store, root).bytes
    assert all(item.size_bytes == store.size_bytes(item.cid) for item in plan.items)
    assert (plan.root, plan.withheld, plan.public_already) == (root, (), 0)


def test_a_plan_names_kinds_in_writing_order(index: Index) -> None:
    store, root = conversation(blocks=2, tail_tokens=1)
    plan = plan_publish(store, index, root, "public")
    kinds = [item.kind for item in plan.items]
    assert kinds == ["root", "model", "segment", *["block", "leaf", "leaf"] * 2, "tail-leaf", "tail-leaf"]
    for at, item in enumerate(plan.items):
        if item.kind == "block":
            assert plan.cids[at + 1 : at + 3] == Block.decode(store.get(item.cid)).kv
        if item.cid.codec == "dag-cbor":
            assert not set(links(store.get(item.cid))) & set(plan.cids[:at]) - {load_root(store, root).model}


def test_the_rows_of_the_tail_are_listed(index: Index) -> None:
    store, root = conversation(blocks=1, tail_tokens=3)
    tail = load_root(store, root).tail.kv
    assert tail == tuple(
        item.cid for item in plan_publish(store, index, root, "public").items if item.kind == "tail-leaf"
    )


def test_nothing_of_another_conversation_is_listed(index: Index) -> None:
    store, root = conversation(blocks=2, seed="a")
    record(store, blocks=3, seed="a")
    other = record(store, blocks=2, seed="b")
    plan = plan_publish(store, index, root, "public")
    assert set(plan.cids) & set(closure(store, other)) == {load_root(store, root).model}
    assert len(set(store.cids())) > plan.blocks


def test_the_name_of_a_private_parent_does_not_leave(index: Index) -> None:
    store, parent = conversation(blocks=1)
    root = record(store, blocks=2, parent=parent)
    plan = plan_publish(store, index, root, "public")
    publish_here(store, index, plan)
    assert not index.is_public(parent)
    assert not index.is_public(root)
    assert index.is_public(plan.root)
    assert all(bytes(parent) not in store.get(cid) for cid in plan.cids)


def test_a_private_parent_is_withheld_and_a_public_one_is_not(index: Index) -> None:
    store, parent = conversation(blocks=1)
    root = record(store, blocks=2, parent=parent)
    plan = plan_publish(store, index, root, "public")
    assert [each.cid for each in plan.withheld] == [parent]
    assert plan.root != root
    assert plan.conversation.parent is None
    assert plan.root == plan.conversation.cid()
    assert bytes(parent) not in plan.conversation.encode()
    assert bytes(parent) in store.get(root)
    assert parent not in plan.cids
    index.publish(parent, closure(store, parent))
    again = plan_publish(store, index, root, "public")
    assert again.withheld == ()
    assert again.public_already == len(set(closure(store, parent)) & set(closure(store, root)))


def test_planning_changes_nothing(index: Index) -> None:
    store, root = conversation()
    before = dict.fromkeys(store.cids())
    plan_publish(ReadOnlyStore(store), index, root, "public")
    assert dict.fromkeys(store.cids()) == before
    assert index.published() == []
    assert not any(index.is_public(cid) for cid in before)


def test_what_is_not_whole_is_not_published(index: Index) -> None:
    for victim in closure(*conversation(blocks=2)):
        store, root = conversation(blocks=2)
        store.delete_many([victim])
        with pytest.raises(BlockNotFound, match=str(victim)):
            plan_publish(store, index, root, "public")


def test_every_missing_block_is_counted(index: Index) -> None:
    store, root = conversation(blocks=2)
    gone = [cid for cid in closure(store, root) if cid.codec == "raw"]
    store.delete_many(gone)
    with pytest.raises(BlockNotFound) as caught:
        plan_publish(store, index, root, "public")
    assert caught.value.data["count"] == len(gone)
    assert sorted(caught.value.data["missing"]) == sorted(map(str, gone))  # type: ignore[call-overload]


def test_a_damaged_root_is_not_published(index: Index) -> None:
    store, root = conversation()
    data = store.get(root)
    store.delete_many([root])
    store.put_many([(root, data[:-1] + b"x")], hashed=True)
    with pytest.raises(DigestMismatch):
        plan_publish(store, index, root, "public")


def test_what_no_reader_would_accept_is_not_published(index: Index) -> None:
    store, root = conversation(blocks=2)
    node = load_root(store, root)
    larger = store.put_node(other_model(head_dim=16))
    with pytest.raises(BadReference, match="not a conversation"):
        plan_publish(store, index, node.segments[0], "public")
    for wrong in (
        rewritten(store, root, bytes=node.bytes - 1),
        rewritten(store, root, model=larger, bytes=2 * node.bytes),
        rewritten(store, root, length=node.length - 1),
    ):
        with pytest.raises((MalformedNode, LimitExceeded)):
            plan_publish(store, index, wrong, "public")
