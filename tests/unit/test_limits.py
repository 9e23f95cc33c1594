"""Each number of `limits` and of docs/formats.md section 9: what reaches it passes, and one more is refused by type."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph import carindex, dagcbor, dagjson, limits
from cyberkv.cybergraph.access.pagetable import PageEntry
from cyberkv.cybergraph.car import car_head, car_header, read_car, write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CyberKVError, LimitExceeded, MalformedNode
from cyberkv.cybergraph.ipld import read_dag_cbor
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.varint import write_varint
from fixtures.golden import BLOCK, CONVERSATION, GRANT, MODEL, PINSET, RING, SEGMENT
from tests.access.sealed import publish
from tests.wire.synthetic import conversation

LEAF = Cid.of(b"", "raw", "sha2-256")
NODE = Cid.of(b"", "dag-cbor", "sha2-256")
Attempt = Callable[[int], object]
"""Makes or reads something of a size."""


def text_node(size: int) -> bytes:
    return dagcbor.head(2, size - 5) + bytes(size - 5)


def nested(depth: int) -> bytes:
    return b"\x81" * (depth - 1) + b"\x80"


def wide_json(items: int) -> bytes:
    return b"[" + b",".join([b"0"] * (items - 1)) + b"]"


def section(size: int) -> list[object]:
    """A CAR of one section that announces `size` bytes and holds them."""
    data = bytes(size - 36)
    cid = Cid.of(data, "raw", "sha2-256")
    return list(read_car(io.BytesIO(car_header([]) + write_varint(size) + cid + data)))


def header(size: int) -> object:
    return read_car(io.BytesIO(write_varint(size) + bytes(size)))


LARGE: dict[str, tuple[int, Attempt]] = {
    "MAX_NODE_BYTES": (limits.MAX_NODE_BYTES, lambda n: dagcbor.decode(text_node(n))),
    "MAX_LEAF_BYTES": (limits.MAX_LEAF_BYTES, lambda n: car_head(LEAF, n)),
    "MAX_NODE_DEPTH": (limits.MAX_NODE_DEPTH, lambda n: dagcbor.decode(nested(n))),
    "MAX_NODE_ITEMS": (limits.MAX_NODE_ITEMS, lambda n: dagcbor.decode(dagcbor.head(4, n - 1) + bytes(n - 1))),
    "MAX_FOREIGN_DEPTH": (limits.MAX_FOREIGN_DEPTH, lambda n: read_dag_cbor(nested(n))),
    "MAX_FOREIGN_NODE_BYTES": (limits.MAX_FOREIGN_NODE_BYTES, lambda n: read_dag_cbor(text_node(n))),
    "MAX_JSON_BYTES": (limits.MAX_JSON_BYTES, lambda n: dagjson.decode(b'"' + b"x" * (n - 2) + b'"')),
    "MAX_TEXT_BYTES": (limits.MAX_TEXT_BYTES, lambda n: dagcbor.decode(dagcbor.encode_text("x" * n))),
    "MAX_CAR_SECTION_BYTES": (limits.MAX_CAR_SECTION_BYTES, section),
}  # fmt: skip
FIELDS: dict[str, tuple[int, Attempt]] = {
    "MAX_BLOCK_TOKENS": (limits.MAX_BLOCK_TOKENS, lambda n: replace(BLOCK, tokens=(1,) * n)),
    "MAX_LEAVES_PER_BLOCK": (limits.MAX_LEAVES_PER_BLOCK, lambda n: replace(BLOCK, kv=(LEAF,) * n)),
    "MAX_SEGMENT_LINKS": (limits.MAX_SEGMENT_LINKS, lambda n: replace(SEGMENT, links=SEGMENT.links[:1] * n)),
    "MAX_SEGMENTS": (limits.MAX_SEGMENTS, lambda n: replace(CONVERSATION, segments=(NODE,) * n)),
    "MAX_LAYERS": (limits.MAX_LAYERS, lambda n: replace(MODEL, num_layers=n)),
    "MAX_TITLE_BYTES": (limits.MAX_TITLE_BYTES, lambda n: replace(CONVERSATION, title="x" * n)),
    "MAX_EPOCH": (limits.MAX_EPOCH, lambda n: replace(GRANT, epoch=n)),
    "MAX_WRAPS": (limits.MAX_WRAPS, lambda n: replace(GRANT, wraps=(bytes(80),) * n)),
    "MAX_WRAP_BYTES": (limits.MAX_WRAP_BYTES, lambda n: replace(GRANT, wraps=(bytes(n),))),
    "MAX_PINSET_LINKS": (limits.MAX_PINSET_LINKS, lambda n: replace(PINSET, links=(NODE,) * n)),
    "MAX_RING_KEYS": (limits.MAX_RING_KEYS, lambda n: replace(RING, keys=(bytes(33),) * n)),
    "MAX_SEALED_PAGES": (
        limits.MAX_SEALED_PAGES,
        lambda n: replace(publish(*conversation()).manifest(), pages=(PageEntry(LEAF, 0),) * n),
    ),
}
ELSEWHERE = {
    "MAX_CAR_HEADER_BYTES": "test_a_header_of_too_many_bytes_is_refused_unread",
    "MAX_CAR_SECTIONS": "test_a_car_of_too_many_sections_is_not_opened_for_random_access",
    "MAX_SEGMENT_PAGES_BYTES": "tests/access/test_negative_sealed.py",
}
"""Limits that the two tables do not fit, and their tests."""


@pytest.mark.parametrize("name", LARGE)
def test_sizes_of_bytes(name: str) -> None:
    most, attempt = LARGE[name]
    assert attempt(most)
    with pytest.raises(LimitExceeded):
        attempt(most + 1)


@pytest.mark.parametrize("name", FIELDS)
def test_lengths_of_fields_in_both_directions(name: str) -> None:
    most, attempt = FIELDS[name]
    right, wrong = attempt(most), attempt(most + 1)
    data = right.encode()  # type: ignore[attr-defined]
    if len(data) <= limits.MAX_NODE_BYTES:
        assert type(right).decode(data) == right  # type: ignore[attr-defined]
    with pytest.raises(MalformedNode):
        wrong.encode()  # type: ignore[attr-defined]


def test_a_header_of_too_many_bytes_is_refused_unread() -> None:
    for size in (limits.MAX_CAR_HEADER_BYTES + 1, 1 << 27):
        stream = io.BytesIO(write_varint(size) + bytes(100))
        with pytest.raises(LimitExceeded):
            read_car(stream)
        assert stream.tell() <= 5
    with pytest.raises(CyberKVError) as caught:
        header(limits.MAX_CAR_HEADER_BYTES)
    assert not isinstance(caught.value, LimitExceeded)


def test_a_car_of_too_many_sections_is_not_opened_for_random_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [(Cid.of(bytes([n]), "raw", "sha2-256"), bytes([n])) for n in range(4)]
    with (tmp_path / "a.car").open("wb") as file:
        write_car(file, [blocks[0][0]], blocks)

    def open_and_read() -> None:
        with CarFilePeer(tmp_path / "a.car") as peer:
            assert dict(peer.get_many([blocks[3][0]])) == dict(blocks[3:])

    open_and_read()
    monkeypatch.setattr(carindex, "MAX_CAR_SECTIONS", 3)
    with pytest.raises(LimitExceeded):
        open_and_read()


def test_no_limit_is_without_a_test() -> None:
    names = {name for name in vars(limits) if name.startswith("MAX_")}
    assert names == {*LARGE, *FIELDS, *ELSEWHERE}


def test_the_table_of_the_documentation_has_the_same_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    table = page.partition("## 9. Limits")[2].partition("## 10.")[0]
    units = {"MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}
    said: set[int] = set()
    for number, unit in re.findall(r"([\d,]+)(?: (MiB|KiB|bytes))?", table):
        said.add(int(number.replace(",", "")) * units.get(unit, 1) if number.strip(",") else 0)
    derived = {"MAX_CAR_SECTION_BYTES", "MAX_LAYERS", "MAX_TITLE_BYTES"}  # said in words, or with their nodes
    for name in {*LARGE, *FIELDS, *ELSEWHERE} - derived:
        assert getattr(limits, name) in said, name
