"""Every node type: what its fields allow comes back from its bytes; equal bytes are equal nodes."""

from dataclasses import fields, replace
from typing import Any

import cbrrr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CyberKVError
from cyberkv.cybergraph.nodes import TYPES, Model, Node, Record, decode_node, links
from cyberkv.cybergraph.nodes.base import Nested
from cyberkv.cybergraph.nodes.kinds import Link, Links, Listing, Maybe
from tests.laws.strategies import of, records

nodes = st.sampled_from(list(TYPES.values())).flatmap(records)
ALL_TYPES = pytest.mark.parametrize("cls", TYPES.values(), ids=TYPES)


@given(nodes)
def test_decode_is_the_inverse_of_encode(node: Node) -> None:
    data = node.encode()
    cid = node.cid()
    assert decode_node(data, verify=cid) == node
    assert type(node).decode(data, verify=cid) == node
    assert decode_node(data).encode() == data
    assert cid == Cid.of(data, "dag-cbor", "sha2-256")
    assert hash(decode_node(data)) == hash(node)


@given(nodes)
def test_the_bytes_are_those_of_a_plain_map(node: Node) -> None:
    plain = {"version": 1, "type": node.TYPE, **as_map(node)}
    assert node.encode() == cbrrr.encode_dag_cbor(plain, cid_type=Cid)
    assert cbrrr.decode_dag_cbor(node.encode(), cid_ctor=Cid) == plain


def as_map(record: Record) -> dict[str, Any]:
    return {field.name.rstrip("_"): plain(getattr(record, field.name), field.name) for field in fields(record)}


def plain(value: Any, name: str) -> Any:
    if isinstance(value, Record):
        return {**as_map(value), **value.CONSTANTS}
    if name == "scaling":
        return dict(value)
    if isinstance(value, tuple):
        return [plain(item, "") for item in value]
    return bytes(value) if name in ("prev", "from_") and value is not None else value


@given(nodes, nodes)
def test_nodes_are_equal_exactly_where_their_names_are(a: Node, b: Node) -> None:
    assert (a.cid() == b.cid()) == (a == b and type(a) is type(b))


@ALL_TYPES
@given(data=st.data())
def test_changing_one_field_changes_the_name(cls: type[Node], data: Any) -> None:
    node = data.draw(records(cls))
    field = data.draw(st.sampled_from([field.name for field in fields(node)]))
    value = data.draw(of(cls.KINDS[field.rstrip("_")]))
    changed = replace(node, **{field: value})
    assert (changed.cid() == node.cid()) == (value == getattr(node, field))


@given(nodes, st.integers(0, 1 << 16), st.integers(1, 255))
def test_changing_one_byte_is_refused_or_gives_another_node(node: Node, at: int, change: int) -> None:
    data = bytearray(node.encode())
    data[at % len(data)] ^= change
    with pytest.raises(CyberKVError):
        decode_node(bytes(data), verify=node.cid())
    try:
        other = decode_node(bytes(data))
    except CyberKVError:
        return
    assert other != node
    assert other.encode() == data


@given(nodes)
def test_links_are_the_fields_that_are_links(node: Node) -> None:
    assert sorted(links(node.encode())) == sorted(linked(node))


def linked(record: Record) -> list[Cid]:
    found = []
    for field in fields(record):
        kind, value = record.KINDS[field.name.rstrip("_")], getattr(record, field.name)
        kind, values = (kind.kind, [value] if value is not None else []) if isinstance(kind, Maybe) else (kind, [value])
        if isinstance(kind, Listing):
            kind, values = kind.kind, [item for each in values for item in each]
        if isinstance(kind, Links):
            found += [cid for each in values for cid in each]
        elif isinstance(kind, Link):
            found += values
        elif isinstance(kind, Nested):
            found += [cid for each in values for cid in linked(each)]
    return found


@given(records(Model), st.data())
def test_a_wrong_value_is_refused_at_the_field_in_both_directions(model: Model, data: Any) -> None:
    field = data.draw(st.sampled_from([field.name for field in fields(Model)]))
    wrong = data.draw(st.sampled_from([object(), 1.5, b"x", -1]))
    with pytest.raises(CyberKVError) as caught:
        replace(model, **{field: wrong}).encode()
    assert caught.value.data["field"] == field
