"""Rotation: speeds and factors bit for bit those of transformers, turning against complex numbers, bad rules named."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GlmConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cyberkv.cybergraph.errors import UnsupportedModel
from cyberkv.cybergraph.identity import diff
from cyberkv.cybergraph.nodes import Rope
from cyberkv.runtime.models.config import DecoderConfig
from cyberkv.runtime.models.identity import identity
from cyberkv.runtime.rope import Rotary, attention_factor, inverse_frequencies, turns

SHAPE: dict[str, Any] = {
    "architectures": ["GlmForCausalLM"], "model_type": "glm", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 272, "head_dim": 64,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "rope_theta": 10_000.0,
}  # fmt: skip
QWEN3 = SHAPE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
FULL = YARN | {"beta_fast": 8, "beta_slow": 2, "mscale": 1.5, "mscale_all_dim": 0.5, "truncate": False}


def read(scaling: dict[str, Any] | None, config: dict[str, Any] = QWEN3) -> DecoderConfig:
    return DecoderConfig.from_hf(config | {"rope_scaling": scaling})


def rope_of(config: DecoderConfig) -> Rope:
    return identity(
        config, weights_digest="none", tokenizer_digest="none", template_digest="none", dtype="f32", block_size=16,
        leaf_hash="blake3",
    ).rope  # fmt: skip


ratios = st.floats(1e-4, 1e4)
optional = st.fixed_dictionaries(
    {},
    optional={
        "attention_factor": st.none() | ratios, "mscale": st.none() | ratios, "mscale_all_dim": st.none() | ratios,
        "truncate": st.booleans(), "partial_rotary_factor": st.sampled_from((0.25, 0.5, 0.75, 1.0)),
    },
)  # fmt: skip


@given(
    factor=ratios, length=st.integers(1, 200_000), betas=st.none() | st.tuples(ratios, ratios).map(sorted),
    base=st.floats(1.001, 1e9), rest=optional,
)  # fmt: skip
@settings(max_examples=40)
def test_yarn_is_that_of_transformers(
    factor: float, length: int, betas: list[float] | None, base: float, rest: dict[str, Any]
) -> None:
    rule = YARN | {"factor": factor, "original_max_position_embeddings": length} | rest
    if betas is not None and betas[0] < betas[1]:
        rule |= {"beta_slow": betas[0], "beta_fast": betas[1]}
    config = SHAPE | {"rope_parameters": rule | {"rope_theta": base}}
    ours, theirs = DecoderConfig.from_hf(config), GlmConfig(**json.loads(json.dumps(config)))
    speeds, expected_factor = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    scaling = dict(ours.rope_scaling)
    assert torch.equal(inverse_frequencies(ours.rotary_dims, ours.rope_base, scaling), speeds)
    assert attention_factor(scaling) == expected_factor
    cos, _ = turns(ours.rotary_dims, ours.rope_base, scaling, 4)
    assert torch.equal(cos, (torch.arange(4.0)[:, None] * speeds).cos() * expected_factor)
    assert torch.isfinite(cos).all()


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 3.0}, {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}], ids=["linear", "llama3"])  # fmt: skip
def test_other_rules_scale_the_part_that_turns(scaling: dict[str, Any]) -> None:
    ours = read(scaling, SHAPE)
    speeds, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        GlmConfig(**SHAPE, rope_parameters=scaling | {"partial_rotary_factor": 0.5})
    )
    got = inverse_frequencies(ours.rotary_dims, ours.rope_base, dict(ours.rope_scaling))
    assert (ours.rotary_dims, factor, attention_factor(dict(ours.rope_scaling))) == (32, 1.0, 1.0)
    assert torch.equal(got, speeds)


@given(
    half=st.integers(1, 8), rest=st.integers(0, 9), interleaved=st.booleans(), start=st.integers(0, 90),
    rows=st.integers(0, 9), scaling=st.sampled_from(({}, dict(read(YARN).rope_scaling))),
)  # fmt: skip
@settings(max_examples=60)
def test_turning_is_a_product_of_complex_numbers(
    half: int, rest: int, interleaved: bool, start: int, rows: int, scaling: dict[str, str]
) -> None:
    dims = 2 * half
    rotary = Rotary(dims, 100.0, scaling, 99, torch.float32, interleaved=interleaved)
    given = torch.randn(rows, 3, dims + rest, generator=torch.Generator().manual_seed(half))
    before = given.clone()
    got = rotary.rotate(given, start)
    assert torch.equal(given, before)
    assert torch.equal(got[..., dims:], given[..., dims:])
    real, imaginary = (slice(0, dims, 2), slice(1, dims, 2)) if interleaved else (slice(0, half), slice(half, dims))
    angles = torch.arange(start, start + rows)[:, None] * inverse_frequencies(dims, 100.0, scaling)
    turn = torch.polar(torch.full_like(angles, attention_factor(scaling)), angles)[:, None]
    expected = torch.complex(given[..., real], given[..., imaginary]) * turn
    torch.testing.assert_close(torch.complex(got[..., real], got[..., imaginary]), expected, rtol=0, atol=1e-5)
    if half > 1 and rows and start:
        other = Rotary(dims, 100.0, scaling, 99, torch.float32, interleaved=not interleaved)
        assert not torch.equal(other.rotate(given, start), got)


def test_the_ordinary_rotation_has_the_bytes_it_had() -> None:
    """The formula of the Llama family, in its order of operations; a wrong order gives other bytes."""
    rotary = Rotary(32, 10_000.0, {}, 200, torch.float32)
    rows = torch.randn(200, 2, 32, generator=torch.Generator().manual_seed(1))
    swapped = torch.cat((-rows[..., 16:], rows[..., :16]), dim=-1)
    assert torch.equal(rotary.rotate(rows, 0), rows * rotary.cos + swapped * rotary.sin)
    wide = (rows.double() * rotary.cos + swapped.double() * rotary.sin).float()
    assert not torch.equal(rotary.rotate(rows, 0), wide)


def test_equal_rotations_read_alike_and_others_do_not() -> None:
    plain = read(YARN)
    alike = [
        YARN | {"beta_fast": 32, "beta_slow": 1.0, "truncate": True}, YARN | {"attention_factor": None, "mscale": 2.0},
        {"type": "yarn", "factor": 4, "original_max_position_embeddings": 512},
        {"type": "yarn", "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 512},
    ]  # fmt: skip
    assert [read(each) for each in alike] == [plain] * len(alike)
    assert read(FULL | {"attention_factor": 1.5}) == read(FULL | {"attention_factor": 1.5, "mscale": None})
    others = [
        None, YARN | {"factor": 2.0}, YARN | {"original_max_position_embeddings": 256}, YARN | {"beta_fast": 31},
        YARN | {"beta_slow": 2}, YARN | {"truncate": False}, YARN | {"attention_factor": 1.0}, FULL,
        FULL | {"mscale": 1.0}, FULL | {"mscale_all_dim": 1.0}, {"rope_type": "linear", "factor": 4.0},
    ]  # fmt: skip
    ropes = [rope_of(read(each)) for each in (YARN, *others)]
    assert len({*ropes}) == len(ropes)
    assert [each.field for each in diff(ropes[0], ropes[2])] == ["scaling"]
    assert len({(rope.rotary_dims, rope.convention) for rope in ropes}) == 1


def test_the_part_and_the_convention_are_in_the_identity() -> None:
    half, whole = DecoderConfig.from_hf(SHAPE), DecoderConfig.from_hf(SHAPE | {"partial_rotary_factor": 1.0})
    assert rope_of(half) == Rope(base="10000.0", scaling=(), rotary_dims=32, convention="interleaved")
    assert rope_of(whole) == replace(rope_of(half), rotary_dims=64)
    assert rope_of(read(None)) == Rope(base="10000.0", scaling=(), rotary_dims=64, convention="half")


def test_yarn_reaches_the_positions_it_is_made_for() -> None:
    """Model cards add the rule and leave `max_position_embeddings` at the trained length."""
    assert read(YARN | {"original_max_position_embeddings": 2048}).max_positions == 8192
    assert read({"rope_type": "yarn", "factor": 4.0}).max_positions == 8192
    assert read(YARN | {"original_max_position_embeddings": 128}).max_positions == 2048
    assert read(None).max_positions == 2048


def test_where_the_part_is_taken_from() -> None:
    """The nested field wins, then the top one, then the default, as transformers has it."""
    field = "partial_rotary_factor"
    cases: list[dict[str, Any]] = [{}, {field: 0.25}, {"rope_parameters": {field: 0.75}}]
    cases.append(cases[1] | cases[2])
    for case in cases:
        theirs = GlmConfig(**json.loads(json.dumps(SHAPE | case)))
        assert DecoderConfig.from_hf(SHAPE | case).rotary_dims == int(64 * theirs.rope_parameters[field])


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(
            ({name: value}, f"rope_parameters.{name}")
            for name in ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
            for value in (-4.0, 0, NAN, float("inf"), "4", True, [4.0], 1e-5, 1e5)
        ),
        ({"factor": None}, "rope_parameters.factor"),
        ({"beta_fast": 2, "beta_slow": 2}, "rope_parameters.beta_fast"),
        ({"beta_slow": 33}, "rope_parameters.beta_fast"),
        ({"truncate": "false"}, "rope_parameters.truncate"),
        ({"truncate": None}, "rope_parameters.truncate"),
        ({"original_max_position_embeddings": 0.5}, "rope_parameters.original_max_position_embeddings"),
        ({"original_max_position_embeddings": NAN}, "rope_parameters.original_max_position_embeddings"),
        ({"original_max_position_embeddings": 1 << 32}, "rope_parameters.original_max_position_embeddings"),
        ({"original_max_position_embeddings": 1 << 30}, "rope_parameters.factor"),
        ({"rope_theta": 1.0}, "rope_theta"),
        ({"finetuned": True}, "rope_parameters.finetuned"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"type": "dynamic"}, "rope_type"),
    ],
)
def test_a_bad_yarn_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    read(YARN)
    with pytest.raises(UnsupportedModel) as caught:
        read(YARN | changes)
    assert caught.value.data["field"] == field


@pytest.mark.parametrize("part", [0, -0.5, 1.5, 1e300, NAN, "0.5", True, None, 0.01, 17 / 64])
def test_a_part_that_no_head_has_is_refused_by_name(part: object) -> None:
    with pytest.raises(UnsupportedModel, match="partial_rotary_factor"):
        DecoderConfig.from_hf(SHAPE | {"partial_rotary_factor": part})
