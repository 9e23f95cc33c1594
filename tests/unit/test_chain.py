"""Building, walking and comparing conversations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference, BlockNotFound, DigestMismatch, MalformedNode
from cyberkv.cybergraph.limits import MAX_SEGMENT_LINKS
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, Conversation, Node, Segment, Tail
from cyberkv.cybergraph.store import CountingStore, MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, make_blocks, make_conversation, make_model

MODEL = make_model().cid()


def segments_of(store: MemoryStore, root: Cid) -> tuple[Cid, ...]:
    return chain.load_root(store, root).segments


def build(store: MemoryStore, blocks: list[Cid], **fields: Any) -> Cid:
    options: dict[str, Any] = {"tail": EMPTY_TAIL, "payload_bytes": 0, **fields}
    return chain.build_root(store, model=MODEL, block_size=BLOCK_SIZE, blocks=blocks, **options)


@pytest.mark.parametrize("tail_tokens", [0, 1, BLOCK_SIZE - 1])
@pytest.mark.parametrize("blocks", [0, 1, 2, 255, 256, 257, 512, 513])
def test_what_is_built_can_be_walked(memory_store: MemoryStore, blocks: int, tail_tokens: int) -> None:
    tokens = list(range(blocks * BLOCK_SIZE + tail_tokens))
    cid = make_conversation(memory_store, tokens)
    root = chain.load_root(memory_store, cid)
    assert root.length == len(tokens)
    assert len(root.segments) == -(-blocks // MAX_SEGMENT_LINKS)
    assert chain.tokens(memory_store, root) == tokens
    steps = list(chain.walk(memory_store, root))
    assert [step.index for step in steps] == list(range(blocks))
    assert [step.position_start for step in steps] == [index * BLOCK_SIZE for index in range(blocks)]
    assert [step.cid for step in steps] == list(chain.block_cids(memory_store, root))
    assert chain.missing(memory_store, cid) == []
    assert set(chain.closure(memory_store, cid)) == set(memory_store.cids())


def test_a_fork_of_600_blocks_rewrites_one_segment_and_the_root(memory_store: MemoryStore) -> None:
    blocks = make_blocks(memory_store, MODEL, range(600 * BLOCK_SIZE))
    whole = build(memory_store, blocks)
    before = set(memory_store.cids())
    for at in (590, 520, 513):
        fork = build(memory_store, blocks[:at], parent=whole, fork_at=at * BLOCK_SIZE)
        assert segments_of(memory_store, fork)[:2] == segments_of(memory_store, whole)[:2]
        assert segments_of(memory_store, fork)[2] != segments_of(memory_store, whole)[2]
        assert len(set(memory_store.cids()) - before) == 2
        before = set(memory_store.cids())
    fork = build(memory_store, blocks[:512], parent=whole)  # at a page's edge only the root is new
    assert set(memory_store.cids()) - before == {fork}


def test_growth_keeps_full_segments(memory_store: MemoryStore) -> None:
    blocks = make_blocks(memory_store, MODEL, range(600 * BLOCK_SIZE))
    seen: dict[int, set[Cid]] = {}
    for length in (255, 256, 257, 511, 512, 513, 600):
        for page, cid in enumerate(segments_of(memory_store, build(memory_store, blocks[:length]))):
            if length >= (page + 1) * MAX_SEGMENT_LINKS:
                seen.setdefault(page, set()).add(cid)
    assert {page: len(cids) for page, cids in seen.items()} == {0: 1, 1: 1}


def test_six_thousand_blocks_without_recursion(memory_store: MemoryStore) -> None:
    count = 6_000
    blocks = make_blocks(memory_store, MODEL, range(count), block_size=1, leaves=1)
    root_cid = chain.build_root(
        memory_store, model=MODEL, block_size=1, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=0
    )
    root = chain.load_root(memory_store, root_cid)
    assert chain.tokens(memory_store, root) == list(range(count))
    assert chain.missing(memory_store, root_cid) == [MODEL]
    assert chain.usable_blocks(memory_store, blocks) == count


def test_the_order_of_a_closure(memory_store: MemoryStore) -> None:
    cid = make_conversation(memory_store, range(2 * BLOCK_SIZE + 1))
    root = chain.load_root(memory_store, cid)
    first, second = chain.walk(memory_store, root)
    assert root.tail.kv is not None
    assert list(chain.closure(memory_store, cid)) == [
        cid, root.model, *root.segments, first.cid, *first.block.kv, second.cid, *second.block.kv,
        *root.tail.kv,
    ]  # fmt: skip


def test_closures_of_several_roots_name_each_cid_once(memory_store: MemoryStore) -> None:
    a = make_conversation(memory_store, range(9))
    b = make_conversation(memory_store, [*range(4), 99, 98, 97, 96])
    both = list(chain.closure(memory_store, a, b, a))
    assert len(both) == len(set(both))
    assert set(both) == set(chain.closure(memory_store, a)) | set(chain.closure(memory_store, b))


def test_a_parent_is_not_followed(memory_store: MemoryStore) -> None:
    parent = make_conversation(memory_store, range(8))
    child = build(memory_store, [], parent=parent)
    memory_store.put_node(make_model())
    assert parent not in list(chain.closure(memory_store, child))
    memory_store.delete_many([parent])
    assert chain.missing(memory_store, child) == []


def test_missing_shows_what_can_be_known_so_far(memory_store: MemoryStore) -> None:
    cid = make_conversation(memory_store, range(3 * BLOCK_SIZE + 1))
    everything = {each: memory_store.get(each) for each in memory_store.cids()}
    root = chain.load_root(memory_store, cid)
    here = MemoryStore()
    rounds = []
    while wanted := chain.missing(here, cid):
        rounds.append(wanted)
        here.put_many((each, everything[each]) for each in wanted)
    assert rounds[0] == [cid]
    assert rounds[1] == [*root.segments, root.model, *(root.tail.kv or ())]
    assert rounds[2] == list(chain.block_cids(memory_store, root))
    assert len(rounds) == 4
    assert {each for wanted in rounds for each in wanted} == set(everything)
    assert len([each for wanted in rounds for each in wanted]) == len(everything)


def test_one_group_of_leaves_missing(memory_store: MemoryStore) -> None:
    """A model of several layer groups: what all groups have is the usable prefix."""
    cid = make_conversation(memory_store, range(5 * BLOCK_SIZE))
    steps = list(chain.walk(memory_store, chain.load_root(memory_store, cid)))
    blocks = [step.cid for step in steps]
    assert chain.usable_blocks(memory_store, blocks) == 5
    for index in (4, 2, 0):
        lost = steps[index].block.kv[1]
        memory_store.delete_many([lost])
        assert chain.usable_blocks(memory_store, blocks) == index
        assert lost in chain.missing(memory_store, cid)
    assert len(chain.missing(memory_store, cid)) == 3
    assert list(chain.walk(memory_store, chain.load_root(memory_store, cid))) == steps  # nodes are all here


@pytest.mark.parametrize("harm", ["delete", "damage"])
def test_a_block_node_missing_or_damaged(memory_store: MemoryStore, harm: str) -> None:
    cid = make_conversation(memory_store, range(3 * BLOCK_SIZE))
    root = chain.load_root(memory_store, cid)
    blocks = list(chain.block_cids(memory_store, root))
    if harm == "delete":
        memory_store.delete_many([blocks[1]])
    else:
        memory_store._blocks[blocks[1]] += b"\0"
    assert chain.usable_blocks(memory_store, blocks) == 1
    assert chain.missing(memory_store, cid) == [blocks[1]]
    with pytest.raises((BlockNotFound, DigestMismatch)):
        list(chain.walk(memory_store, root))
    with pytest.raises((BlockNotFound, DigestMismatch)):
        list(chain.closure(memory_store, cid))


def test_only_a_conversation_is_a_root(memory_store: MemoryStore) -> None:
    model = memory_store.put_node(make_model())
    leaf = Cid.of(b"leaf", "raw", "blake3")
    memory_store.put(leaf, b"leaf")
    for cid in (model, leaf):
        with pytest.raises(BadReference, match="not a conversation"):
            chain.load_root(memory_store, cid)
    with pytest.raises(BlockNotFound):
        chain.load_root(memory_store, make_model("none").cid())
    with pytest.raises(MalformedNode):
        chain.missing(memory_store, model)


def rewritten(store: MemoryStore, change: Callable[[list[Block], list[Segment]], None]) -> Conversation:
    """A conversation of 300 blocks with some nodes exchanged, each sound in itself."""
    root = chain.load_root(store, make_conversation(store, range(300 * BLOCK_SIZE)))
    blocks = [step.block for step in chain.walk(store, root)]
    segments = [Segment.decode(store.get(cid)) for cid in root.segments]
    originals = list(blocks)
    change(blocks, segments)
    for index, block in enumerate(blocks):
        if block is not originals[index]:
            cid = store.put_node(block)
            page = segments[index // 256]
            links = list(page.links)
            links[index % 256] = replace(links[index % 256], to=cid)
            if index % 256 < 255:
                links[index % 256 + 1] = replace(links[index % 256 + 1], from_=cid)
            segments[index // 256] = replace(page, links=tuple(links))
    return replace(root, segments=tuple(store.put_node(segment) for segment in segments))


OTHER = make_model("other").cid()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", lambda blocks, _: blocks.__setitem__(7, replace(blocks[7], model=OTHER))),
        ("prev", lambda blocks, _: blocks.__setitem__(7, replace(blocks[7], prev=None))),
        ("prev", lambda blocks, _: blocks.__setitem__(0, replace(blocks[0], prev=OTHER))),
        ("tokens", lambda blocks, _: blocks.__setitem__(298, replace(blocks[298], tokens=(1, 2, 3)))),
        ("kv", lambda blocks, _: blocks.__setitem__(9, replace(blocks[9], kv=blocks[9].kv[:1]))),
        ("model", lambda _, pages: pages.__setitem__(1, replace(pages[1], model=OTHER))),
        ("start", lambda _, pages: pages.__setitem__(1, replace(pages[1], start=255))),
        ("links", lambda _, pages: pages.__setitem__(1, replace(pages[1], links=pages[1].links[:-1]))),
        ("links", lambda _, pages: pages.__setitem__(0, replace(pages[0], links=pages[0].links[1:]))),
        ("start", lambda _, pages: pages.__setitem__(0, pages[1])),
    ],
)
def test_nodes_that_do_not_belong_together(memory_store: MemoryStore, field: str, change: Any) -> None:
    root = rewritten(memory_store, change)
    chain.check_root(root)
    with pytest.raises(MalformedNode) as caught:
        list(chain.walk(memory_store, root))
    assert caught.value.data["field"] == field
    assert caught.value.hint
    assert str(caught.value.data["cid"]) in str(caught.value)


@pytest.mark.parametrize("field", ["from_", "position_start"])
@pytest.mark.parametrize("index", [0, 1, 256, 299])
def test_links_that_do_not_fit(memory_store: MemoryStore, field: str, index: int) -> None:
    def change(_: list[Block], pages: list[Segment]) -> None:
        links = list(pages[index // 256].links)
        wrong: dict[str, Any] = {"from_": OTHER, "position_start": index * BLOCK_SIZE + 1}
        links[index % 256] = replace(links[index % 256], **{field: wrong[field]})
        pages[index // 256] = replace(pages[index // 256], links=tuple(links))

    with pytest.raises(MalformedNode) as caught:
        list(chain.block_cids(memory_store, rewritten(memory_store, change)))
    assert caught.value.data["field"] == field.removesuffix("_")


def test_the_control_of_the_rewrites_is_sound(memory_store: MemoryStore) -> None:
    root = rewritten(memory_store, lambda _, __: None)
    assert chain.tokens(memory_store, root) == list(range(300 * BLOCK_SIZE))


LEAF = Cid.of(b"rows", "raw", "blake3")


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("tail", {"tail": Tail((1, 2, 3, 4), 0, None, None), "length": 4, "segments": ()}),
        ("tail.prefilled", {"tail": Tail((1, 2), 3, None, None), "length": 6}),
        ("tail.kv", {"tail": Tail((1,), 0, None, (LEAF,)), "length": 5}),
        ("tail.kv", {"tail": Tail((), 0, "test", (LEAF,))}),
        ("length", {"length": 5}),
        ("length", {"length": 3}),
        ("segments", {"length": 4 + 256 * 4}),
        ("segments", {"segments": ()}),
        ("segments", {"segments": (MODEL, MODEL)}),
    ],
)
def test_roots_whose_counts_disagree(memory_store: MemoryStore, field: str, fields: dict[str, Any]) -> None:
    sound = chain.load_root(memory_store, make_conversation(memory_store, range(4)))
    spoiled = memory_store.put_node(replace(sound, **fields))
    with pytest.raises(MalformedNode) as caught:
        chain.load_root(memory_store, spoiled)
    assert caught.value.data["field"] == field


def test_build_root_refuses_what_it_could_not_load(memory_store: MemoryStore) -> None:
    with pytest.raises(MalformedNode):
        build(memory_store, [], tail=Tail(tuple(range(BLOCK_SIZE)), 0, None, None))
    with pytest.raises(MalformedNode):
        build(memory_store, [LEAF])
    assert list(memory_store.cids()) == []


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (range(20), range(20), (20, 5)),
        (range(20), range(10), (10, 2)),
        (range(20), [*range(6), 99, 98], (6, 1)),
        (range(20), [99, *range(19)], (0, 0)),
        (range(10), [*range(9), 99], (9, 2)),
        ([], range(9), (0, 0)),
    ],
)
def test_common_prefix(memory_store: MemoryStore, a: list[int], b: list[int], expected: tuple[int, int]) -> None:
    roots = [chain.load_root(memory_store, make_conversation(memory_store, list(tokens))) for tokens in (a, b)]
    for first, second in (roots, roots[::-1]):
        common = chain.common_prefix(memory_store, first, second)
        assert (common.common_tokens, common.common_blocks) == expected
        leaves = [leaf for step in list(chain.walk(memory_store, first))[: expected[1]] for leaf in step.block.kv]
        assert common.shared_bytes == sum(len(memory_store.get(leaf)) for leaf in leaves)


def test_equal_tokens_in_different_blocks(memory_store: MemoryStore) -> None:
    a = make_conversation(memory_store, range(20))
    b = make_conversation(memory_store, range(20), flavour="another domain")
    common = chain.common_prefix(memory_store, chain.load_root(memory_store, a), chain.load_root(memory_store, b))
    assert common == chain.Common(common_tokens=20, common_blocks=0, shared_bytes=0)


def test_reads_per_block_are_constant(memory_store: MemoryStore) -> None:
    per_block = set()
    for count in (256, 1024):
        cid = make_conversation(memory_store, range(count * BLOCK_SIZE))
        store = CountingStore(memory_store)
        root = chain.load_root(store, cid)
        list(chain.walk(store, root))
        per_block.add((store.counts["get"] - 1 - len(root.segments)) / count)
    assert per_block == {1.0}


def test_a_root_is_written_in_one_call(memory_store: MemoryStore) -> None:
    blocks = make_blocks(memory_store, MODEL, range(300 * BLOCK_SIZE))
    store = CountingStore(memory_store)
    chain.build_root(store, model=MODEL, block_size=BLOCK_SIZE, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=0)
    assert store.counts["put_many"] == 1
    assert store.counts["get"] == 0


def test_every_node_reads_back(memory_store: MemoryStore) -> None:
    cid = build(memory_store, [], title="t", created="now", approx="splice", fork_at=0)
    node: Node = chain.load_root(memory_store, cid)
    assert node.cid() == cid
