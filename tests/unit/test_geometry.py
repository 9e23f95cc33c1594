"""Sizes of leaves and caches against plain counting."""

import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.errors import UnsupportedModel
from cyberkv.cybergraph.nodes import CANONICAL_RULE, Model, Rope
from cyberkv.runtime import geometry as module
from cyberkv.runtime.geometry import ELEMENT_BYTES, TARGET_LEAF_BYTES, Geometry, layers_per_leaf

SMOLLM2 = Geometry(30, 3, 64, block_size=16, layers_per_leaf=10, dtype="f32")

shapes = st.builds(
    Geometry,
    num_layers=st.integers(8, 40),
    num_kv_heads=st.integers(1, 8),
    head_dim=st.sampled_from((16, 64)),
    block_size=st.sampled_from((1, 8, 16)),
    layers_per_leaf=st.integers(1, 8),
    dtype=st.sampled_from(("f32", "bf16", "f16")),
)


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted > 5
    assert result.failed == 0


@given(shapes)
def test_leaves_partition_a_block(shape: Geometry) -> None:
    layers = [layer for first, count in shape.leaf_layers for layer in range(first, first + count)]
    assert layers == list(range(shape.num_layers))
    assert len(shape.leaf_layers) == shape.leaves_per_block
    assert sum(map(shape.leaf_bytes, range(shape.leaves_per_block))) == shape.block_bytes
    assert shape.block_bytes == shape.block_size * shape.bytes_per_token == shape.num_layers * shape.layer_bytes


@given(shapes, st.integers(0, 100))
def test_size_is_what_counting_element_by_element_gives(shape: Geometry, tokens: int) -> None:
    size = shape.size(tokens)
    elements = tokens * shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim
    assert size.total_bytes == elements * ELEMENT_BYTES[shape.dtype]
    assert size.blocks * shape.block_size + size.tail_tokens == tokens
    assert 0 <= size.tail_tokens < shape.block_size
    groups = range(shape.leaves_per_block)
    tail_bytes = sum(shape.tail_leaf_bytes(group, size.tail_tokens) for group in groups)
    assert size.blocks * shape.block_bytes + tail_bytes == size.total_bytes
    assert (size.tail_leaves == 0) == (size.tail_tokens == 0)


@given(st.integers(1, 80), st.integers(1, 64), st.sampled_from((64, 128)), st.sampled_from((16, 64)))
def test_group_is_the_largest_divisor_that_fits(layers: int, heads: int, head_dim: int, block_size: int) -> None:
    count = layers_per_leaf(layers, heads, head_dim, block_size=block_size, dtype="bf16")
    layer_bytes = 2 * block_size * heads * head_dim * 2
    fitting = [n for n in range(1, layers + 1) if layers % n == 0 and n * layer_bytes <= TARGET_LEAF_BYTES]
    assert count == max(fitting, default=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_layers", 0), ("num_layers", 1025), ("num_kv_heads", 0), ("head_dim", 0), ("block_size", 0),
     ("block_size", 1025), ("layers_per_leaf", 0), ("layers_per_leaf", 31)],
)  # fmt: skip
def test_impossible_shapes_are_refused_by_field(field: str, value: int) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        replace(SMOLLM2, **{field: value})
    assert caught.value.data["field"] == field
    assert caught.value.data["got"] == value


def test_a_leaf_over_two_mebibytes_is_refused() -> None:
    replace(SMOLLM2, block_size=128)
    with pytest.raises(UnsupportedModel, match="2457600 bytes"):
        replace(SMOLLM2, block_size=160)


def test_model_node_round_trip() -> None:
    model = Model(
        weights="blake3:00", adapters=(), tokenizer="none", chat_template="none", architecture="Llama",
        num_layers=30, hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64,
        rope=Rope(base="100000.0", scaling=(), rotary_dims=64, convention="half"), attention=("full",) * 30,
        activation="silu", norm_eps="1e-05", qk_norm=False, scale="0.125", logit_softcap=None, kv_dtype="f32",
        kv_quant_scheme="none", block_size=16, layers_per_leaf=10, position_anchor_mode="relative",
        leaf_hash="blake3", rule=CANONICAL_RULE,
    )  # fmt: skip
    assert Geometry.from_model(model) == SMOLLM2
    with pytest.raises(UnsupportedModel):
        Geometry.from_model(replace(model, layers_per_leaf=0))
