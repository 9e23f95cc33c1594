"""What stands between attention calls: right, and no bit of a row depends on how many others there are, or on which."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.kernels import launch, rowwise, tiles
from tests.gpu.cases import BOUNDS, DEVICE, distance, random, same_bits

NAN = float("nan")
DTYPES = ("f32", "f16", "bf16")
EPS = 1e-5


def among_nan(rows: Tensor) -> Tensor:
    """Rows in one piece, in memory that is NaN before and after."""
    count = rows.shape[0]
    memory = torch.full((count + 16, *rows.shape[1:]), NAN, dtype=rows.dtype, device=DEVICE)
    memory[8 : 8 + count] = rows
    return memory[8 : 8 + count]


def matrix(dtype: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    weight, bias = random(outputs, inputs, dtype=dtype, seed=2), random(outputs, dtype=dtype, seed=3)
    return among_nan(weight), among_nan(bias)


Operation = Callable[[Tensor], Tensor]


def operations(dtype: str, columns: int = 70) -> dict[str, Operation]:
    """Every function, of rows alone."""
    weight, bias = matrix(dtype, columns, 40)
    factor = random(columns, dtype=dtype, seed=4).to(DEVICE)
    return {
        "linear": lambda x: launch.linear(x, weight, bias),
        "rms_norm": lambda x: launch.rms_norm(x, factor, EPS),
        "silu_mul": launch.silu_mul,
    }


def test_more_tiles_of_rows_than_go_together_are_all_computed() -> None:
    n = 16 * tiles.GROUPED_TILES + 1
    x, (weight, _) = random(n, 3, dtype="f32", seed=1).to(DEVICE), matrix("f32", 3, 70)
    assert distance(launch.linear(x, weight), reference.linear(x, weight)) <= BOUNDS["f32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "inputs", "outputs"), [(1, 1, 1), (2, 33, 70), (17, 64, 64), (65, 70, 9)])
def test_linear_agrees_with_the_reference(dtype: str, n: int, inputs: int, outputs: int) -> None:
    x = among_nan(random(n, inputs, dtype=dtype, seed=1))
    weight, bias = matrix(dtype, inputs, outputs)
    for given in (None, bias):
        got, expected = launch.linear(x, weight, given), reference.linear(x, weight, given)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        assert distance(got, expected) <= BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 64, 70, 200])
def test_norms_and_gates_agree_with_the_reference(dtype: str, columns: int) -> None:
    whole = random(3, 5, columns, dtype=dtype, seed=1).to(DEVICE)
    factors = random(3, columns, dtype=dtype, seed=2).to(DEVICE)
    for x, factor in [(whole[:, 0], factors[0]), (whole[:, :3], factors), (whole[:, 1:], factors[1])]:
        got, expected = launch.rms_norm(x, factor, EPS), reference.rms_norm(x, factor, EPS)
        assert (got.shape, got.dtype, got.is_contiguous()) == (x.shape, x.dtype, True)
        assert distance(got, expected) <= BOUNDS[dtype]
    rows = 20 * random(3, 2 * columns, dtype=dtype, seed=3).to(DEVICE)
    assert distance(launch.silu_mul(rows), reference.silu_mul(rows)) <= BOUNDS[dtype]


def test_a_norm_is_rounded_before_it_is_weighted() -> None:
    x, factor = random(5, 96, dtype="bf16", seed=1), random(96, dtype="bf16", seed=2)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    got = launch.rms_norm(x.to(DEVICE), factor.to(DEVICE), EPS).cpu()
    assert same_bits(got, factor * wide.to(x.dtype))
    assert not same_bits(got, (factor.float() * wide).to(x.dtype))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("linear", "f32"), ("linear", "bf16"), ("rms_norm", "f32"), ("silu_mul", "f32"),
        *(pytest.param(name, "bf16", marks=pytest.mark.slow) for name in ("rms_norm", "silu_mul")),
    ],
)  # fmt: skip
def test_the_number_of_rows_and_their_neighbours_change_no_bit(name: str, dtype: str) -> None:
    operation = operations(dtype)[name]
    # The others have a program for each row, and take long under the interpreter.
    n, counts = (100, (1, 2, 15, 16, 17, 64)) if name == "linear" else (18, (1, 17))
    x = random(n, 70, dtype=dtype, seed=1).to(DEVICE)
    whole = operation(x)
    assert whole.isfinite().all()
    for some in counts:
        assert same_bits(operation(x[:some]), whole[:some])
    for first in (1, n - 4):
        assert same_bits(operation(x[first : first + 4]), whole[first : first + 4])
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert same_bits(operation(x[order]), whole[order])
    alone = torch.full_like(x, NAN)
    alone[9] = x[9]
    out = operation(alone)
    assert same_bits(out[9], whole[9])
    assert out[:9].isnan().all()


def test_control_a_sum_in_parts_has_other_bits() -> None:
    x, (weight, _) = random(9, 128, dtype="f32", seed=1).to(DEVICE), matrix("f32", 128, 40)
    halves = [
        launch.linear(x[:, part].contiguous(), weight[:, part].contiguous()) for part in (slice(64), slice(64, 128))
    ]
    whole = launch.linear(x, weight)
    for other in (halves[0] + halves[1], x @ weight.T):
        assert distance(other, whole) <= BOUNDS["f32"]
        assert not same_bits(other, whole)


def test_control_a_weight_and_a_bias_reach_their_output_and_no_other() -> None:
    x, (weight, bias) = random(3, 70, dtype="f32", seed=1).to(DEVICE), matrix("f32", 70, 40)
    before = launch.linear(x, weight)
    assert distance(launch.linear(x, weight, bias), before) > 0.01
    weight[7, 69] = NAN
    after = launch.linear(x, weight)
    assert after[:, 7].isnan().all()
    after[:, 7] = before[:, 7]
    assert same_bits(after, before)


def test_no_rows_are_no_rows() -> None:
    for operation in operations("f32").values():
        out = operation(torch.zeros(0, 70, device=DEVICE))
        assert (out.shape[0], out.ndim) == (0, 2)


class Recorder:
    """Stands where a kernel stands, and notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, dict[str, Any]]] = []

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda x, *_, **constants: self.seen.append((x, constants))


@pytest.mark.parametrize("name", ["linear", "rms_norm", "silu_mul"])
@pytest.mark.parametrize("columns", [6, 70, 96])
def test_what_is_compiled_follows_from_the_model_alone(
    monkeypatch: pytest.MonkeyPatch, columns: int, name: str
) -> None:
    recorder = Recorder()
    for kernel in ("normalise_rows", "multiply_silu", "multiply_rows"):
        monkeypatch.setattr(rowwise, kernel, recorder)
    operation = operations("f16", columns)[name]
    memory = torch.zeros(40, columns + 1, dtype=torch.float16, device=DEVICE)
    for rows in (memory[:1, :columns], memory[1:2, 1:], memory[:7, :columns].contiguous(), memory[3:40, 1:]):
        operation(rows)
    for x, constants in recorder.seen:
        assert constants == recorder.seen[0][1]
        # Only what is told so has to lie so: rows of a norm, and the first row of what lies in one piece.
        told = x if constants.get("aligned") else x[:1] if "aligned" not in constants else x[:0]
        assert not any(row.data_ptr() % 16 for row in told)
    assert len(recorder.seen) == 4


def test_tiles_follow_from_the_type_and_the_outputs() -> None:
    for dtype in DTYPES:
        for outputs in (1, 576, 8191, 8192, 128256):
            cut = tiles.linear_cut(dtype, outputs)
            half = dtype != "f32"
            assert (cut.tile_rows, cut.tile_outputs) == ((64, 128 if outputs >= 8192 else 64) if half else (16, 64))
