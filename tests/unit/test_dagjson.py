"""dag-json by the rules of its specification: one form for one value, and the reserved key `/`."""

from typing import Any

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagjson import decode, encode
from cyberkv.cybergraph.errors import CyberKVError, LimitExceeded, MalformedJson
from cyberkv.cybergraph.foreign import parse_cid
from cyberkv.cybergraph.limits import MAX_FOREIGN_DEPTH, MAX_JSON_BYTES, MAX_NODE_ITEMS

V0 = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd"
OWN = Cid.of(b"", "raw", "sha2-256")

GOLDEN: list[tuple[Any, str]] = [
    (None, "null"),
    ([True, False], "[true,false]"),
    ([0, -1, (1 << 64) - 1, -(1 << 63)], "[0,-1,18446744073709551615,-9223372036854775808]"),
    ([1.0, -0.5, 1e100, 1.5e-7, 1e16], "[1.0,-0.5,1.0e+100,1.5e-07,1.0e+16]"),
    ({}, "{}"),
    ([[], {}], "[[],{}]"),
    ({"b": 1, "a": 2, "aa": 3, "B": 4}, '{"B":4,"a":2,"aa":3,"b":1}'),  # bytes decide, not length
    ({"\U00010000": 1, "\uffff": 2}, '{"\uffff":2,"\U00010000":1}'),  # UTF-8 order, not that of UTF-16
    ('\x00\n"\\/\x7f\u2028é', '"\\u0000\\n\\"\\\\/\x7f\u2028é"'),
    (b"", '{"/":{"bytes":""}}'),
    (b"\x00\x01\x02\xff", '{"/":{"bytes":"AAEC/w"}}'),
    (parse_cid(V0), f'{{"/":"{V0}"}}'),
    (OWN, f'{{"/":"{OWN}"}}'),
    ({"a": {"/": [OWN, b"x"]}}, f'{{"a":{{"/":[{{"/":"{OWN}"}},{{"/":{{"bytes":"eA"}}}}]}}}}'),
    # Maps with the key `/` that are neither links nor bytes, and do not look like either.
    ({"/": True}, '{"/":true}'),
    ({"/": 1, "a": 2}, '{"/":1,"a":2}'),
    ({"-": 1, "/": "foo"}, '{"-":1,"/":"foo"}'),
    ({"/": {"a": 1, "bytes": "x"}}, '{"/":{"a":1,"bytes":"x"}}'),
    ({"/": {"bytes": True}, "bar": "baz"}, '{"/":{"bytes":true},"bar":"baz"}'),
    ({"-": 1, "/": {"bytes": "x"}}, '{"-":1,"/":{"bytes":"x"}}'),
    ({"/": {"/": True}}, '{"/":{"/":true}}'),
    ({"/": OWN}, f'{{"/":{{"/":"{OWN}"}}}}'),
]
RESERVED = [
    {"/": "foo"},
    {"/": "foo", "bar": "baz"},
    {"0": 1, "/": "foo"},
    {"/": {"bytes": "foo"}},
    {"/": {"bytes": "foo", "other": 1}},
    {"/": {"bytes": "foo"}, "bar": "baz"},
    {"/": {"bytes": "foo", "other": 1}, "bar": "baz"},
    [{"a": {"/": "foo", "z": 1}}],
]


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_one_value_has_one_text(value: Any, text: str) -> None:
    assert encode(value) == text.encode()
    assert decode(text.encode()) == value
    assert repr(decode(text.encode())) == repr(decode(encode(value)))


@pytest.mark.parametrize("value", RESERVED)
def test_maps_that_look_like_links_or_bytes_have_no_form(value: Any) -> None:
    with pytest.raises(MalformedJson, match="looks like a link"):
        encode(value)


@pytest.mark.parametrize(
    "text",
    ['{"/":"foo"}', '{"/":"foo","bar":"baz"}', '{"/":{"bytes":"foo","other":1}}', '{"/":{"bytes":"foo"},"bar":"baz"}',
     '{"/":{"bytes":"fo!"}}', '{"/":{"bytes":"A"}}', '{"/":{"bytes":"AAEC/w=="}}', '{"/":{"bytes":"AB"}}',
     f'{{"/":"b{V0}"}}', f'{{"/":"{str(OWN).upper()}"}}', f'{{"/":"{V0}","a":1}}'],
)  # fmt: skip
def test_false_links_and_bytes_are_refused(text: str) -> None:
    with pytest.raises(MalformedJson):
        decode(text.encode())


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1\n", "[1, 2]", '{"a": 1}', '{"b":1,"a":2}', '{"a":1,"a":1}', '{"a":1,"a":2}', '"\\u00e9"',
     '"\\u0041"', '"\\/"', "01", "-0", "+1", "1.", ".5", "1e3", "1.50", "1E5", "NaN", "Infinity", "-Infinity", "nul",
     "[1", "[1,]", "{", '{"a"}', '{1:2}', "1 2", "\ufeff1", "'a'", "18446744073709551616", "-9223372036854775809",
     "1" * 5000, '"\x01"', '"\\ud800"', "[" * 100_000, "1e999"],
)  # fmt: skip
def test_other_ways_to_write_are_refused(text: str) -> None:
    with pytest.raises(CyberKVError):
        decode(text.encode())


def test_text_that_is_not_utf_8_is_refused() -> None:
    for data in (b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xff\xfe1\x00"):
        with pytest.raises(MalformedJson):
            decode(data)


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, float("nan"), float("inf"), {1: 2}, (1,), bytearray(b"x")])
def test_values_that_have_no_form(value: Any) -> None:
    with pytest.raises(MalformedJson):
        encode(value)
    with pytest.raises(LimitExceeded):
        encode(1 << 64)


def test_depth_is_bounded_in_both_directions() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert decode(encode(nested(MAX_FOREIGN_DEPTH))) == nested(MAX_FOREIGN_DEPTH)
    with pytest.raises(LimitExceeded):
        encode(nested(MAX_FOREIGN_DEPTH + 1))
    with pytest.raises(LimitExceeded):
        decode(b"[" * 500 + b"]" * 500)
    with pytest.raises(LimitExceeded):
        decode(b'{"a":' * 500 + b"1" + b"}" * 500)


def test_size_and_count_are_bounded_in_both_directions() -> None:
    fits = [0] * (MAX_NODE_ITEMS - 1)
    assert decode(encode(fits)) == fits
    for over in ([0] * MAX_NODE_ITEMS, [[]] * MAX_NODE_ITEMS, "x" * MAX_JSON_BYTES):
        with pytest.raises(LimitExceeded):
            encode(over)
    with pytest.raises(LimitExceeded):
        decode(b"[" + b"[]," * MAX_NODE_ITEMS + b"1]")
    commas = "[,{" * MAX_NODE_ITEMS
    assert decode(encode([commas])) == [commas]  # inside text they count for nothing


def test_a_string_that_does_not_end_is_found_in_time() -> None:
    with pytest.raises(MalformedJson):
        decode(b'"' + b'\\"' * (MAX_JSON_BYTES // 2 - 1))
