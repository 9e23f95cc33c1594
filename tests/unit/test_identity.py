"""Identity: every axis alone changes the name and is named. The cases follow the dataclass's own fields."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from blake3 import blake3

from cyberkv.cybergraph.errors import IdentityMismatch, MalformedNode
from cyberkv.cybergraph.identity import Difference, diff, digest, require_same
from cyberkv.cybergraph.nodes import Record
from cyberkv.cybergraph.nodes.kinds import Text
from fixtures.golden import MODEL


def altered(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield the record with one field changed, for each field, and again inside nested records."""
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if isinstance(value, Record):
            for name, inner in altered(value):
                yield f"{field.name}.{name}", replace(record, **{field.name: inner})
        else:
            yield field.name, replace(record, **{field.name: another(record, field.name, value)})


def another(record: Record, name: str, value: Any) -> Any:
    kind = record.KINDS[name]
    if isinstance(kind, Text) and kind.choices:
        return next((choice for choice in kind.choices if choice != value), value + "-2")
    match value:
        case None:
            return "30.0"
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "-2"
        case tuple():
            return value[:-1]
    raise AssertionError(f"no alteration for {name}: teach this test its kind")


CASES = dict(altered(MODEL))
ONE_VALUE = {"position_anchor_mode"}
"""Axes with one allowed value so far: no node can hold another."""


def test_the_cases_cover_every_field() -> None:
    rope = {f"rope.{field.name}" for field in fields(MODEL.rope)}
    assert {*CASES} == {field.name for field in fields(MODEL)} - {"rope"} | rope


@pytest.mark.parametrize("field", CASES)
def test_one_altered_axis_changes_the_name_and_is_named(field: str) -> None:
    other = CASES[field]
    found = diff(MODEL, other)
    assert [each.field for each in found] == [field]
    assert found[0].a != found[0].b
    if field in ONE_VALUE:
        with pytest.raises(MalformedNode, match=field):
            other.cid()
    else:
        assert other.cid() != MODEL.cid()
    with pytest.raises(IdentityMismatch) as caught:
        require_same(MODEL, other)
    assert caught.value.data == {"field": field, "expected": found[0].a, "got": found[0].b}
    for part in (field, *(f"{value!r:.80}" for value in found[0][1:])):
        assert part in str(caught.value)
    json.dumps(caught.value.data)


def test_control_equal_identities_do_not_differ() -> None:
    assert diff(MODEL, replace(MODEL)) == []
    require_same(MODEL, replace(MODEL))
    assert replace(MODEL).cid() == MODEL.cid()


def test_all_differences_are_listed_in_field_order_and_the_first_is_raised() -> None:
    other = replace(MODEL, rope=replace(MODEL.rope, base="5.0"), weights="w", rule="r")
    assert diff(MODEL, other) == [
        Difference("weights", MODEL.weights, "w"),
        Difference("rope.base", "10000.0", "5.0"),
        Difference("rule", MODEL.rule, "r"),
    ]
    assert diff(other, MODEL)[0] == Difference("weights", "w", MODEL.weights)
    with pytest.raises(IdentityMismatch, match="weights"):
        require_same(MODEL, other)


def test_digest_of_pieces_is_the_digest_of_the_whole() -> None:
    expected = "blake3:" + blake3(b"abc").hexdigest()
    assert digest(b"abc") == digest([b"a", bytearray(b"b"), memoryview(b"c")]) == digest(iter([b"abc"])) == expected
    assert digest(b"abd") != expected
