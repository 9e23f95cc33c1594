"""Numbers that are not finite are found in every form in which rows are stored, and nothing else is."""

import math
import struct
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import NotFinite
from cyberkv.runtime.finite import first_wrong, require_finite
from cyberkv.runtime.geometry import Geometry, KvDtype

LAYERS, HEADS, HEAD_DIM, GROUP = 3, 2, 4, 2
FORMS: dict[KvDtype, tuple[int, int]] = {"f32": (4, 8), "bf16": (2, 8), "f16": (2, 5)}
"""Bytes of a number, and bits of its exponent."""


def shape(dtype: KvDtype = "f32", **options: Any) -> Geometry:
    return Geometry(LAYERS, HEADS, HEAD_DIM, block_size=4, layers_per_leaf=2, dtype=dtype, **options)


def is_finite(word: int, size: int, exponent_bits: int) -> bool:
    """By the definition: an exponent of nothing but ones."""
    return (word >> (8 * size - 1 - exponent_bits)) & ((1 << exponent_bits) - 1) != (1 << exponent_bits) - 1


@pytest.mark.parametrize("dtype", FORMS)
@given(st.data())
def test_a_number_is_found_by_its_bits_and_where_it_is(dtype: KvDtype, data: st.DataObject) -> None:
    size, exponent_bits = FORMS[dtype]
    geometry = shape(dtype)
    group = data.draw(st.integers(0, geometry.leaves_per_block - 1))
    first, layers = geometry.leaf_layers[group]
    tokens = data.draw(st.integers(1, 4))
    places = list(product(range(layers), ("key", "value"), range(tokens), range(HEADS), range(HEAD_DIM)))
    words = data.draw(st.dictionaries(st.integers(0, len(places) - 1), st.integers(0, (1 << 8 * size) - 1), max_size=5))
    leaf = bytearray(len(places) * size)
    for at, word in words.items():
        leaf[at * size : (at + 1) * size] = word.to_bytes(size, "little")
    wrong = sorted(at for at, word in words.items() if not is_finite(word, size, exponent_bits))
    found = first_wrong(geometry, group, leaf)
    if not wrong:
        assert found is None
        return
    layer, field, token, head, _ = places[wrong[0]]
    assert found is not None
    assert found[:4] == (field, first + layer, token, head)
    assert not math.isfinite(float(found.number))


@given(
    st.floats(width=32), st.integers(-128, 127), st.integers(0, 4 * HEADS - 1)
)  # fmt: skip
@example(3.4028234663852886e38, 1, 0)
@example(3.4028234663852886e38, 2, 0)
@example(math.nan, 0, 7)
@example(-math.inf, 1, 3)
def test_of_quantised_rows_what_is_read_counts(scale: float, number: int, at: int) -> None:
    geometry = shape(scheme="int8/row/f32")
    rows = [struct.pack("<4bf", 0, 0, 0, 0, 1.0) for _ in range(2 * 4 * HEADS)]
    rows[at] = struct.pack("<4bf", 0, number, 0, 0, scale)
    found = first_wrong(geometry, 1, b"".join(rows))
    assert (found is None) == (math.isfinite(scale) and abs(number * scale) < 2.0**128)
    if found is not None:
        assert found[:4] == ("key", 2, at // HEADS, at % HEADS)


def test_the_error_says_what_and_where() -> None:
    geometry, leaf = shape(), bytearray(2 * 2 * 4 * HEADS * HEAD_DIM * 4)
    cid = Cid.of(bytes(leaf), "raw", "blake3")
    require_finite(geometry, 0, cid, leaf)
    leaf[-4:] = struct.pack("<f", math.inf)
    with pytest.raises(NotFinite, match="the value of layer 1, token 3, KV head 1 is inf") as caught:
        require_finite(geometry, 0, cid, leaf)
    told = {each: caught.value.data[each] for each in ("cid", "field", "expected", "got")}
    assert told == {"cid": str(cid), "field": "value", "expected": "finite", "got": "inf"}
