"""Every kernel against the same function in float64, over a covering set of shapes: run on the GPU where there is one,
under the interpreter elsewhere."""

from dataclasses import replace

import pytest
import torch

from cyberkv.runtime.cuda.support import Attention
from tests.gpu.cases import BOUNDS, attention, case, distance

COVERING = [
    attention(3, 1, 64, 16),
    attention(2, 2, 80, 32, rotary_dims=32, interleaved=True, window=50, softcap=5.0),
    attention(4, 1, 96, 64, rotary_dims=0),
    attention(8, 1, 128, 128),
    attention(3, 1, 256, 16, window=270, softcap=30.0, interleaved=True),
    attention(4, 1, 64, 128, "f16", rotary_dims=16),
    attention(8, 1, 128, 16, "bf16"),
    attention(1, 1, 256, 64, "bf16", window=20),
]
COSTLY = (COVERING[3], COVERING[4])
"""Under the interpreter; what others have of them goes before: pages of 128, heads of 256, caps and windows."""
WIDE = [
    attention(group * kv_heads, kv_heads, head_dim, page_size, dtype, **more)
    for dtype in ("f32", "f16", "bf16")
    for head_dim, page_size, group, kv_heads in [
        (64, 32, 1, 2), (80, 16, 3, 2), (96, 128, 4, 1), (128, 64, 8, 1), (256, 32, 4, 1), (64, 16, 33, 1),
    ]
    for more in [{}, {"window": 1}, {"window": 300, "softcap": 8.0}, {"rotary_dims": 48, "interleaved": True}]
]  # fmt: skip


def name_of(a: Attention) -> str:
    return f"{a.dtype}-{a.heads}x{a.kv_heads}x{a.head_dim}-page{a.page_size}-turn{a.rotary_dims}-window{a.window}"


def check(a: Attention, lengths: list[int], starts: list[int], rows: int) -> None:
    made = case(a, lengths, bases=[1000, 3, 0][: len(lengths)])
    q = made.ask(rows)
    got, expected = made.prefill(q, starts), made.expected(q, starts)
    assert distance(got, expected) <= BOUNDS[a.dtype]
    last = [length - 1 for length in lengths]
    got, expected = made.decode(q[:, 0]), made.expected(q[:, :1], last)[:, 0]
    assert distance(got, expected) <= BOUNDS[a.dtype]


@pytest.mark.parametrize(
    "a", [pytest.param(a, marks=pytest.mark.slow if a in COSTLY else (), id=name_of(a)) for a in COVERING]
)
def test_kernels_agree_with_the_reference(a: Attention) -> None:
    check(a, [275, 9], [266, 0], 9)


@pytest.mark.slow
@pytest.mark.parametrize("a", WIDE, ids=name_of)
def test_kernels_agree_with_the_reference_in_many_shapes(a: Attention) -> None:
    check(a, [600, 257, 1], [250, 256, 0], 60)


@pytest.mark.slow
@pytest.mark.parametrize("a", [COVERING[0], COVERING[1], COVERING[6]], ids=name_of)
@pytest.mark.parametrize("edge", [16, 32, 128, 256, 512])
def test_kernels_agree_with_the_reference_around_the_ends_of_pages_tiles_and_panels(a: Attention, edge: int) -> None:
    lengths = [edge - 1, edge, edge + 1]
    check(a, lengths, [length - 3 for length in lengths], 5)


@pytest.mark.parametrize(
    "wrong",
    [{"scale": 0.13}, {"window": 49}, {"softcap": 5.1}, {"rotary_dims": 30}, {"interleaved": False}, {"rotated": True}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_control_each_field_is_seen(wrong: dict[str, float]) -> None:
    a = COVERING[1]
    made = case(a, [300], bases=[7])
    other = replace(made, attention=replace(a, **wrong))
    q = made.ask(1)
    assert distance(other.decode(q[:, 0]), made.expected(q, [299])[:, 0]) > 100 * BOUNDS["f32"]
    assert distance(other.prefill(q, [299]), made.expected(q, [299])) > 100 * BOUNDS["f32"]


def test_control_the_base_is_seen_by_k_and_q_alike() -> None:
    a = replace(COVERING[0], dtype="f32")
    near, far = case(a, [40]), case(a, [40], bases=[1000])
    q = near.ask(1)
    # Attention sees distances only, so a base changes bits and hardly anything else.
    assert not torch.equal(near.decode(q[:, 0]), far.decode(q[:, 0]))
    assert distance(near.decode(q[:, 0]), far.decode(q[:, 0])) < 1e-3


def test_nothing_to_see_is_zeros() -> None:
    made = case(COVERING[0], [0, 5])
    out = made.decode(made.ask(1)[:, 0])
    assert not out[0].any()
    assert out[1].any()
