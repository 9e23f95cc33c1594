"""Rows into pages, and pool rows to staging and back: bit for bit, and nothing beside them."""

import pytest
import torch

from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.kernels import launch
from tests.gpu.cases import DEVICE, LAYER, attention, case, ints, random, same_bits

SHAPES = [attention(3, 3, 64, 16), attention(8, 2, 80, 128, "bf16"), attention(4, 4, 256, 64, "f16")]


@pytest.mark.parametrize("a", SHAPES, ids=["f32", "bf16", "f16"])
def test_append_writes_its_slots_and_no_other(a) -> None:
    made, plain = case(a, [40, 140]), case(a, [40, 140])
    requests, positions = [0, 1, 1, 0, 1, 0], [39, 0, 139, 16, 127, -1]
    # Rows of one projection: q, k and v side by side, so k and v are no pieces of their own.
    qkv = random(6, 3 * a.kv_heads, a.head_dim, dtype=a.dtype, seed=5).to(DEVICE)
    k, v = qkv[:, a.kv_heads : 2 * a.kv_heads], qkv[:, 2 * a.kv_heads :]
    launch.append_rows(made.kv, k, v, made.tables, ints(requests), ints(positions), a)
    reference.append_rows(plain.kv, k, v, plain.tables, ints(requests), ints(positions), a)
    assert same_bits(made.pool, plain.pool)
    before = case(a, [40, 140])
    assert not same_bits(made.pool, before.pool)
    for row, (request, position) in enumerate(zip(requests, positions, strict=True)):
        if position >= 0:
            assert same_bits(made.slot(request, position), torch.stack((k[row], v[row])))
            made.slot(request, position).copy_(before.slot(request, position))
    assert same_bits(made.pool, before.pool)


def test_rows_that_were_appended_are_attended_to() -> None:
    a = attention(3, 1, 64, 16)
    whole, missing = case(a, [30]), case(a, [30])
    for position in range(20, 30):
        missing.slot(0, position).fill_(float("nan"))
    q = whole.ask(10)
    assert missing.prefill(q, [20]).isnan().any()
    k, v = torch.stack([whole.slot(0, position) for position in range(20, 30)], dim=1)
    launch.append_rows(missing.kv, k, v, missing.tables, ints([0] * 10), ints([*range(20, 30)]), a)
    assert same_bits(missing.prefill(q, [20]), whole.prefill(q, [20]))


@pytest.mark.parametrize("layers", [slice(None), slice(LAYER, LAYER + 1)], ids=["all layers", "one layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rows_go_to_staging_and_back(layers: slice, dtype: torch.dtype) -> None:
    # Every bit pattern, those of NaN among them.
    numbers = torch.randint(-128, 128, (6, 2, 2, 16, 3, 68), generator=torch.Generator().manual_seed(0))
    pool = numbers.to(torch.int8).view(dtype).to(DEVICE)
    part, indices = pool[:, layers], ints([4, 0, 5])
    staging, plain = torch.zeros_like(part[:3]), torch.zeros_like(part[:3])
    launch.gather_rows(part, indices, staging)
    reference.gather_rows(part, indices, plain)
    assert same_bits(staging, plain)
    assert not same_bits(staging, part[:3])

    target, expected = torch.zeros_like(pool), torch.zeros_like(pool)
    launch.scatter_rows(target[:, layers], ints([1, 3, 2]), staging)
    reference.scatter_rows(expected[:, layers], ints([1, 3, 2]), staging)
    assert same_bits(target, expected)
    assert not target[[0, 4, 5]].any()
    assert same_bits(target[[1, 3, 2]][:, layers], part[[4, 0, 5]])


def test_no_rows_are_no_launch() -> None:
    a = attention(3, 1, 64, 16)
    made, before = case(a, [5]), case(a, [5])
    nothing = torch.empty(0, 1, 64, device=DEVICE)
    launch.append_rows(made.kv, nothing, nothing, made.tables, ints([]), ints([]), a)
    launch.scatter_rows(made.pool, ints([]), made.pool[:0])
    assert same_bits(made.pool, before.pool)
    assert made.only([]).decode(torch.empty(0, 3, 64, device=DEVICE)).shape == (0, 3, 64)
