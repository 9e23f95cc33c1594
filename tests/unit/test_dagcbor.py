"""dag-cbor at its bounds: sizes, counts, integer widths, and what the encoder refuses."""

from typing import Any

import cbrrr
import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import (
    MAX_INT,
    MAX_TOKEN,
    check_canonical,
    decode,
    encode,
    encode_tokens,
    head,
    parse,
    scan,
)
from cyberkv.cybergraph.errors import LimitExceeded, MalformedCbor
from cyberkv.cybergraph.limits import MAX_NODE_BYTES, MAX_NODE_ITEMS, MAX_TEXT_BYTES

EDGES = [edge + step for bits in (0, 8, 16, 32, 63) for edge in ((1 << bits) - 1,) for step in (-1, 0, 1)]
WIDTH_EDGES = sorted({value for value in (*EDGES, 22, 23, 24, 25) if 0 <= value <= MAX_INT})


@pytest.mark.parametrize("value", WIDTH_EDGES)
def test_integers_at_every_width(value: int) -> None:
    for signed in (value, -1 - value):
        assert encode(signed) == cbrrr.encode_dag_cbor(signed)
        assert decode(encode(signed)) == signed


def test_heads_up_to_64_bits() -> None:
    assert head(0, (1 << 64) - 1).hex() == "1b" + "ff" * 8


@pytest.mark.parametrize("value", [MAX_INT + 1, -MAX_INT - 2, 1 << 64, -(1 << 70)])
def test_integers_beyond_64_signed_bits_are_refused(value: int) -> None:
    with pytest.raises(LimitExceeded):
        encode(value)


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        (1,),
        {1},
        bytearray(b"x"),
        {1: 2},
        {b"a": 1},
        {"a": 1, 2: 3},
        [object()],
        {"a": {None: 1}},
        range(3),
    ],
)
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(MalformedCbor):
        encode(value)


def test_half_a_surrogate_pair_is_refused_wherever_it_stands() -> None:
    for value in ("\ud800", ["\udfff"], {"\ud800": 1}):
        with pytest.raises(MalformedCbor):
            encode(value)
    assert decode(encode("\U00010000")) == "\U00010000"


def test_buffers_of_any_kind_are_read() -> None:
    data = encode({"a": [1, "x"]})
    assert decode(bytearray(data)) == decode(memoryview(data)) == decode(data)


def test_node_size_is_bounded_in_both_directions() -> None:
    fits, over = b"\0" * (MAX_NODE_BYTES - 5), b"\0" * (MAX_NODE_BYTES - 4)
    assert decode(encode(fits)) == fits
    with pytest.raises(LimitExceeded) as caught:
        encode(over)
    assert caught.value.data["size_bytes"] == MAX_NODE_BYTES + 1
    with pytest.raises(LimitExceeded):
        scan(head(2, len(over)) + over)


def test_text_size_is_bounded_in_both_directions() -> None:
    assert decode(encode("x" * MAX_TEXT_BYTES)) == "x" * MAX_TEXT_BYTES
    over = "x" * (MAX_TEXT_BYTES + 1)
    with pytest.raises(LimitExceeded):
        encode(over)
    with pytest.raises(LimitExceeded):
        decode(cbrrr.encode_dag_cbor([over]))


def test_item_count_is_bounded_in_both_directions() -> None:
    fits = [0] * (MAX_NODE_ITEMS - 1)
    assert decode(encode(fits)) == fits
    for item in (0, []):
        over = [item] * MAX_NODE_ITEMS
        with pytest.raises(LimitExceeded):
            decode(cbrrr.encode_dag_cbor(over))
        with pytest.raises(LimitExceeded):
            encode(over)


def test_many_links_are_not_many_items() -> None:
    cid = Cid.of(b"", "raw", "blake3")
    links = [cid] * 16_384
    assert decode(encode(links)) == links


def test_errors_say_where() -> None:
    with pytest.raises(MalformedCbor) as caught:
        decode(bytes.fromhex("8201fb0000000000000000"))
    assert caught.value.data["offset"] == 2
    assert "float" in caught.value.data["reason"]


def test_parse_alone_does_not_prove_canonical_form_and_decode_does() -> None:
    data = bytes.fromhex("a2616200616100")  # b before a
    assert parse(data) == {"a": 0, "b": 0}
    with pytest.raises(MalformedCbor):
        decode(data)
    with pytest.raises(MalformedCbor):
        check_canonical(data, encode(parse(data)))


def test_keys_that_could_collide_are_refused_before_they_are_compared() -> None:
    keys = b"".join(bytes.fromhex("82") + head(0, at) + head(0, at) + b"\0" for at in range(1000))
    with pytest.raises(MalformedCbor, match="key"):
        decode(head(5, 1000) + keys)


@pytest.mark.parametrize("token", [-1, MAX_TOKEN + 1, True, 1.0, "1", None])
def test_token_lists_hold_only_token_ids(token: Any) -> None:
    encode_tokens([1, 0])
    with pytest.raises(MalformedCbor):
        encode_tokens([1, token])


def test_token_lists_are_plain_lists() -> None:
    tokens = [*range(70_000), MAX_TOKEN]  # more different ids than the table of encodings keeps
    assert encode_tokens(tokens) == encode_tokens(tokens) == cbrrr.encode_dag_cbor(tokens)
    assert encode_tokens([]) == encode([])
