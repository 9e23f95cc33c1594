"""Other people's nodes: all of strict dag-cbor, and the links of dag-pb."""

from typing import Any

import cbrrr
import pytest

from cyberkv.cybergraph import dagcbor
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CyberKVError, LimitExceeded, MalformedBytes, MalformedCbor, UnsupportedFormat
from cyberkv.cybergraph.foreign import AnyCid, ForeignCid, any_cid, parse_cid
from cyberkv.cybergraph.ipld import links_of, read_dag_cbor, read_value, write_value
from cyberkv.cybergraph.limits import MAX_FOREIGN_DEPTH, MAX_FOREIGN_NODE_BYTES, MAX_NODE_ITEMS

V0 = parse_cid("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd")
OWN = Cid.of(b"", "raw", "sha2-256")


def pb(*links: tuple[bytes, str], data: bytes = b"") -> bytes:
    """A dag-pb node: links, each with a name and a size, then data, as other programs write it."""
    fields = b""
    for cid, name in links:
        link = bytes([0x0A, len(cid)]) + cid + bytes([0x12, len(name)]) + name.encode() + b"\x18\x80\x01"
        fields += bytes([0x12, len(link)]) + link
    return fields + (bytes([0x0A, len(data)]) + data if data else b"")


def cid_of(codec: int) -> AnyCid:
    return any_cid(bytes([1, codec]) + V0)


@pytest.mark.parametrize(
    "value",
    [0, -1, (1 << 64) - 1, -(1 << 64), 1.5, -0.0, [1.0, None, True, "é", b"\0"], {"a": [{"bb": 1}], "cc": {}}],
)
def test_values_agree_with_another_library(value: Any) -> None:
    data = write_value("dag-cbor", value)
    assert repr(read_dag_cbor(data)) == repr(value)
    if not (type(value) is int and not -(1 << 63) <= value < 1 << 63):
        assert data == cbrrr.encode_dag_cbor(value)


def test_links_of_every_kind_come_back() -> None:
    value = {"v0": V0, "own": OWN, "many": [V0, OWN, V0]}
    for codec in ("dag-cbor", "dag-json"):
        data = write_value(codec, value)  # type: ignore[arg-type]
        cid = parse_cid("baguqeerasords4njcts6vs7qvdjfcvgnume4hqohf65zsfguprqphs3icwea") if codec == "dag-json" else (
            Cid.of(data, "dag-cbor", "sha2-256")
        )  # fmt: skip
        back = read_value(cid, data)
        assert back == value
        assert isinstance(back, dict)
        assert type(back["v0"]) is ForeignCid
        assert type(back["own"]) is Cid
        assert sorted(links_of(cid, data)) == sorted([V0, OWN, V0, OWN, V0])


@pytest.mark.parametrize(
    "data",
    ["", "ff", "1817", "190001", "1a00000001", "1b0000000000000001", "5f4100ff", "9fff", "bfff", "f7", "f97e00",
     "fb7ff0000000000000", "fb7ff8000000000000", "f90000", "fa00000000", "a2616201616101", "a2616101616101", "a10101",
     "a1410101", "62c328", "6261", "4261", "82", "0101", "c1fb0000000000000000", "d82a4101", "d82a4100", "d82a00",
     "d82a5825000171122000", "d9002a420001", "1c", "3c", "e0", "f0", "f818", "fc"],
)  # fmt: skip
def test_anything_but_the_one_encoding_is_refused(data: str) -> None:
    with pytest.raises(MalformedCbor):
        read_dag_cbor(bytes.fromhex(data))


def test_what_the_quick_reader_takes_this_one_reads_the_same() -> None:
    value = {"a": [1, "x", b"y", None, True, OWN], "type": "block", "n": {"deep": [[]]}}
    data = dagcbor.encode(value)  # type: ignore[arg-type]
    assert read_dag_cbor(data) == dagcbor.decode(data) == value
    assert write_value("dag-cbor", value) == data  # type: ignore[arg-type]


def test_bounds() -> None:
    fits = [0] * (MAX_NODE_ITEMS - 1)
    assert read_dag_cbor(write_value("dag-cbor", fits)) == fits  # type: ignore[arg-type]
    for data in (
        write_value("dag-cbor", [0] * MAX_NODE_ITEMS), bytes(MAX_FOREIGN_NODE_BYTES + 1),
        b"\x81" * (MAX_FOREIGN_DEPTH + 1) + b"\0",
    ):  # fmt: skip
        with pytest.raises(LimitExceeded):
            read_dag_cbor(data)
    for hostile in (b"\x9b" + b"\xff" * 8, b"\xbb" + b"\x7f" * 8, b"\x5b" + b"\x7f" * 8, b"\x81" * 64 + b"\x9a" * 5):
        with pytest.raises(CyberKVError):
            read_dag_cbor(hostile)
    with pytest.raises(LimitExceeded):
        write_value("dag-cbor", 1 << 64)
    with pytest.raises(MalformedCbor):
        write_value("dag-cbor", float("inf"))


def test_the_links_of_dag_pb_in_their_order() -> None:
    assert links_of(V0, pb((V0, "b"), (OWN, "a"), (V0, ""), data=b"unixfs")) == [V0, OWN, V0]
    assert links_of(V0, pb(data=b"unixfs")) == []
    assert links_of(V0, b"") == []


@pytest.mark.parametrize(
    "data",
    [b"\x12", b"\x12\x80", b"\x12\x05ab", b"\x12\x00", b"\x12\x03\x0a\x01\x00", b"\x09" + bytes(8), b"\x0d" + bytes(4),
     b"\x12" + b"\xff" * 11, b"\x12\x24" + (b"\x0a\x22" + V0)[:-1] + b"\x12\x00", b"\xff" * 20,
     b"\x12\x48" + (b"\x0a\x22" + V0) * 2],
)  # fmt: skip
def test_broken_dag_pb_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBytes):
        links_of(V0, data)


def test_other_codecs_have_no_links_and_no_value() -> None:
    for codec in (0x51, 0x55, 0x78):
        cid = cid_of(codec)
        assert links_of(cid, b"\xd8\x2a anything") == []
        with pytest.raises(UnsupportedFormat, match=cid.codec):
            read_value(cid, b"")
