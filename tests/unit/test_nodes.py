"""Node types: what the classes promise beside the laws."""

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import encode, parse
from cyberkv.cybergraph.errors import DigestMismatch, MalformedCbor, MalformedNode, UnsupportedFormat
from cyberkv.cybergraph.limits import (
    MAX_BLOCK_TOKENS,
    MAX_LEAVES_PER_BLOCK,
    MAX_NODE_BYTES,
    MAX_SEGMENT_LINKS,
    MAX_SEGMENTS,
    MAX_TITLE_BYTES,
)
from cyberkv.cybergraph.nodes import TYPES, Block, Conversation, NextBlock, Node, Segment, decode_node, links
from fixtures.golden import BLOCK, CONVERSATION, FIRST, MODEL, NODES, SEGMENT, TAIL_TOKENS


def test_kinds_are_the_fields_of_the_dataclass_in_order() -> None:
    for cls in TYPES.values():
        assert list(cls.KINDS) == [field.name.rstrip("_") for field in fields(cls)]  # type: ignore[arg-type]


def test_a_python_keyword_is_its_own_name_on_the_wire() -> None:
    item = parse(SEGMENT.encode())["links"][1]
    assert item["from"] == FIRST.cid() == SEGMENT.links[1].from_


def test_nodes_are_values() -> None:
    assert len({BLOCK, replace(BLOCK), FIRST}) == 2
    with pytest.raises(FrozenInstanceError):
        BLOCK.prev = None  # type: ignore[misc]


def test_prev_is_named_and_not_linked() -> None:
    assert links(BLOCK.encode()) == [*BLOCK.kv, BLOCK.model]
    assert BLOCK.prev not in links(BLOCK.encode())
    assert bytes(BLOCK.prev) in BLOCK.encode()


def test_depth_from_root_to_leaf_is_three() -> None:
    assert SEGMENT.cid() in links(CONVERSATION.encode())
    assert BLOCK.cid() in links(SEGMENT.encode())
    assert BLOCK.kv[0] in links(BLOCK.encode())


def test_verify_comes_before_everything_else() -> None:
    with pytest.raises(DigestMismatch):
        Block.decode(b"not cbor", verify=BLOCK.cid())
    with pytest.raises(DigestMismatch):
        decode_node(FIRST.encode(), verify=BLOCK.cid())
    with pytest.raises(MalformedCbor):
        Block.decode(b"not cbor")


def test_a_node_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(MalformedNode) as caught:
        Segment.decode(BLOCK.encode())
    assert caught.value.data["field"] in ("type", "kv")


@pytest.mark.parametrize("extra", [{}, {"news": 1}])
def test_a_newer_version_is_unsupported_not_corrupt(extra: dict[str, Any]) -> None:
    data = encode({**parse(BLOCK.encode()), "version": 2, "prev": bytes(FIRST.cid()), **extra})
    with pytest.raises(UnsupportedFormat) as caught:
        decode_node(data)
    assert caught.value.exit_code == 5


def test_inner_fields_are_named_from_the_outside_in() -> None:
    for wrong, field in (
        (replace(CONVERSATION, tail=replace(CONVERSATION.tail, prefilled=-1)), "tail.prefilled"),
        (replace(MODEL, rope=replace(MODEL.rope, base=1)), "rope.base"),  # type: ignore[arg-type]
        (replace(SEGMENT, links=(replace(SEGMENT.links[0], to=BLOCK.kv[0]),)), "links.to"),
        (replace(SEGMENT, links=(replace(SEGMENT.links[0], from_="x"),)), "links.from"),  # type: ignore[arg-type]
        (replace(MODEL, rope=MODEL), "rope"),  # type: ignore[arg-type]
    ):
        with pytest.raises(MalformedNode) as caught:
            wrong.encode()
        assert caught.value.data["field"] == field
        assert f"'{field}'" in str(caught.value)


def test_title_is_bounded_in_bytes() -> None:
    fits = replace(CONVERSATION, title="é" * (MAX_TITLE_BYTES // 2))
    assert Conversation.decode(fits.encode()) == fits
    for title in ("é" * (MAX_TITLE_BYTES // 2) + "x", "\ud800"):
        with pytest.raises(MalformedNode, match="title"):
            replace(CONVERSATION, title=title).encode()


def test_scaling_is_sorted_and_has_distinct_keys() -> None:
    for scaling in ((("b", "1"), ("a", "1")), (("a", "1"), ("a", "2")), (("a",),), "ab", [("a", "1")]):
        with pytest.raises(MalformedNode, match=r"rope\.scaling"):
            replace(MODEL, rope=replace(MODEL.rope, scaling=scaling)).encode()  # type: ignore[arg-type]


def test_lists_are_refused_where_tuples_stand() -> None:
    for wrong in (replace(BLOCK, tokens=[1]), replace(BLOCK, kv=list(BLOCK.kv))):  # type: ignore[arg-type]
        with pytest.raises(MalformedNode):
            wrong.encode()


def largest() -> list[Node]:
    """The largest node of each type that grows."""
    node, leaf = BLOCK.cid(), BLOCK.kv[0]
    link = NextBlock(from_=node, to=node, position_start=(1 << 63) - 1)
    tail = replace(
        CONVERSATION.tail,
        tokens=((1 << 32) - 1,) * (MAX_BLOCK_TOKENS - 1),
        kv=(leaf,) * MAX_LEAVES_PER_BLOCK,
    )
    return [
        replace(BLOCK, tokens=((1 << 32) - 1,) * MAX_BLOCK_TOKENS, kv=(leaf,) * MAX_LEAVES_PER_BLOCK),
        replace(SEGMENT, links=(link,) * MAX_SEGMENT_LINKS),
        replace(CONVERSATION, segments=(node,) * MAX_SEGMENTS, tail=tail, title="x" * MAX_TITLE_BYTES),
    ]


@pytest.mark.parametrize("node", largest(), ids=lambda node: node.TYPE)
def test_the_largest_node_fits_the_limits(node: Node) -> None:
    data = node.encode()
    assert len(data) <= MAX_NODE_BYTES
    assert decode_node(data) == node


@pytest.mark.parametrize(
    ("node", "field"),
    [
        (replace(BLOCK, tokens=(0,) * (MAX_BLOCK_TOKENS + 1)), "tokens"),
        (replace(BLOCK, kv=(BLOCK.kv[0],) * (MAX_LEAVES_PER_BLOCK + 1)), "kv"),
        (replace(SEGMENT, links=SEGMENT.links * (MAX_SEGMENT_LINKS // 2) + SEGMENT.links[:1]), "links"),
        (replace(CONVERSATION, segments=(SEGMENT.cid(),) * (MAX_SEGMENTS + 1)), "segments"),
        (
            replace(CONVERSATION, tail=replace(CONVERSATION.tail, tokens=(0,) * MAX_BLOCK_TOKENS)),
            "tail.tokens",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_more_is_refused(node: Node, field: str) -> None:
    with pytest.raises(MalformedNode) as caught:
        node.encode()
    assert caught.value.data["field"] == field


def test_links_reads_any_dag_cbor() -> None:
    cid = Cid.of(b"", "raw", "blake3")
    assert links(encode({"b": [cid, {"c": cid}], "a": bytes(cid)})) == [cid, cid]
    assert links(NODES["conversation"].encode())[-1] == CONVERSATION.segments[0]
    assert len(TAIL_TOKENS) == CONVERSATION.length % CONVERSATION.block_size
