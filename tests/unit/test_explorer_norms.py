"""Numbers out of leaves: against the definition, written out in plain Python."""

import math
import struct
from collections.abc import Sequence

import pytest

from cyberkv.cybergraph.errors import MalformedNode, UnsupportedModel
from cyberkv.cybergraph.gateway.pages.heat import MOST_CELLS, MOST_LAYERS, SHADES, table
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.norms import block_norms
from tests.wire.synthetic import BLOCK_SIZE, HEAD_DIM, KV_HEADS, LAYERS, LAYERS_PER_LEAF, other_model

FORMATS = {"f32": "<f", "f16": "<e"}


def value_at(layer: int, part: int, token: int, head: int, dim: int) -> float:
    """Numbers that every format holds exactly, and that differ along every axis."""
    return (layer + 1) * (1 if part == 0 else -2) + token / 4 + head * 8 + dim / 2


def pack(dtype: str, value: float) -> bytes:
    return struct.pack("<f", value)[2:] if dtype == "bf16" else struct.pack(FORMATS[dtype], value)


def make_leaves(dtype: str, tokens: int = BLOCK_SIZE) -> list[bytes]:
    groups = [range(LAYERS_PER_LEAF), range(LAYERS_PER_LEAF, LAYERS)]
    return [
        b"".join(
            pack(dtype, value_at(layer, part, token, head, dim))
            for layer in group for part in range(2) for token in range(tokens)
            for head in range(KV_HEADS) for dim in range(HEAD_DIM)
        )
        for group in groups
    ]  # fmt: skip


def expected(layer: int, part: int, head: int, tokens: int = BLOCK_SIZE) -> float:
    squares = [value_at(layer, part, t, head, d) ** 2 for t in range(tokens) for d in range(HEAD_DIM)]
    return math.sqrt(sum(squares) / len(squares))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("tokens", [BLOCK_SIZE, 3])
def test_the_root_mean_square_of_each_layer_part_and_head(dtype: str, tokens: int) -> None:
    measured = block_norms(other_model(kv_dtype=dtype), make_leaves(dtype, tokens))
    for layer in range(LAYERS):
        for part in range(2):
            wanted = [expected(layer, part, head, tokens) for head in range(KV_HEADS)]
            assert measured[layer][part] == pytest.approx(wanted, rel=1e-6)
    assert len(measured) == LAYERS
    assert measured[0][0] != measured[1][0]


def test_what_is_not_finite_stays_so() -> None:
    first, second = make_leaves("f32")
    measured = block_norms(other_model(), [struct.pack("<f", math.inf) + first[4:], second[:-4] + b"\xff\xff\xff\x7f"])
    assert math.isinf(measured[0][0][0])
    assert math.isnan(measured[-1][-1][-1])
    assert math.isfinite(measured[0][0][1])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda leaves: leaves[:1],
        lambda leaves: [*leaves, leaves[0]],
        lambda leaves: [leaves[0], leaves[1][:-1]],
        lambda leaves: [leaves[0], b""],
        lambda leaves: [leaves[0] * 2, leaves[1]],
    ],
)
def test_leaves_of_another_shape_are_refused(spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(MalformedNode):
        block_norms(other_model(), spoil(make_leaves("f32")))


def test_a_shape_that_nobody_could_hold_is_refused() -> None:
    with pytest.raises(UnsupportedModel):
        block_norms(other_model(num_kv_heads=1 << 12, head_dim=1 << 12), make_leaves("f32"))
    assert Geometry.from_model(other_model()).leaves_per_block == 2


def flat(value: float, layers: int = 3, heads: int = 2) -> list[list[list[float]]]:
    return [[[value] * heads, [value] * heads] for _ in range(layers)]


def test_k_and_v_have_scales_of_their_own() -> None:
    heat = table([[[1.0, 2.0], [100.0, 200.0]], [[3.0, 4.0], [300.0, 400.0]]])
    assert heat.columns == ("K 0", "K 1", "V 0", "V 1")
    shades = [[spot.shade for spot in row] for row in heat.rows]
    assert [row[:2] for row in shades] == [row[2:] for row in shades]
    assert (shades[0][0], shades[1][1]) == (0, SHADES - 1)
    assert [spot.text for spot in heat.rows[0]] == ["1", "2", "100", "200"]


@pytest.mark.parametrize("value", [0.0, 5.5, math.inf, math.nan])
def test_a_map_of_one_value_has_one_shade(value: float) -> None:
    shades = {spot.shade for row in table(flat(value)).rows for spot in row}
    assert len(shades) == 1


def test_many_heads_are_put_together_and_many_layers_are_cut() -> None:
    values: Sequence[float] = (3.0, 4.0) * (MOST_CELLS // 4)
    heat = table([[list(values), list(values)]] * 2)
    assert heat.columns == ("K", "V")
    assert heat.rows[0][0].text == f"{math.sqrt(12.5):.3g}"
    long = table(flat(1.0, layers=1024))
    assert (len(long.rows), long.more_layers) == (MOST_LAYERS, 1024 - MOST_LAYERS)
