"""The kernels compile for devices that are not here, and take no more of one than it has. No GPU is needed."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

MODULE = "cyberkv.runtime.cuda.kernels.report"
MOST_SHARED_BYTES = {"sm_75": 64 << 10, "sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
"""What a device gives one program, by the vendors' tables."""
MOST_REGISTERS = {"gfx942": 512}
MOST_SPILLED_BYTES = {"gfx942": 1024}
USUAL_SPILLED_BYTES = 64
UNFIT_SPILLED_BYTES = 16 << 10
"""Of half types on a device for which triton makes no matrix products."""
MATRIX = {
    "sm_80": {"mma.sync"},
    "sm_90": {"mma.sync", "wgmma.mma_async"},
    "sm_100": {"mma.sync", "tcgen05.mma"},
    "gfx942": {"v_mfma"},
}
SHAPES = (
    "bf16, 32/8 heads of 128", "the same, K rotated already", "f16, 8/4 heads of 256, capped",
    "f16, 32/32 heads of 80, partly rotated", "f32, 9/3 heads of 64", "f32, 8/4 heads of 256, capped",
    "bf16, 4096 to 28672", "bf16, 14336 to 4096", "f16, 2048 to 2048", "f32, 4096 to 4096", "f16, any",
)  # fmt: skip
"""Every branch of every kernel, and what takes most of each number; two narrower ones are compiled for one device."""
CHOSEN = {**dict.fromkeys(MOST_SHARED_BYTES, SHAPES), "sm_90": ()}  # all
OF_BF16 = {shape for shape in SHAPES if shape.startswith(("bf16", "the same"))}


@dataclass
class Line:
    shape: str
    kernel: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    matrix: set[str]

    @property
    def half(self) -> bool:
        return not self.shape.startswith("f32")


def uninterpreted(folder: Path, *given: str) -> str:
    """Run Python in a process that interprets no kernel, with nothing compiled before, and give what it says."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, *given], env={**environment, "TRITON_CACHE_DIR": str(folder)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout


def report(target: str, folder: Path) -> list[Line]:
    lines = []
    for text in uninterpreted(folder, "-m", MODULE, target, *CHOSEN[target]).splitlines()[2:]:
        name, shape, kernel, *numbers, matrix = (cell.strip() for cell in text.strip("|").split(" | "))
        assert name == target
        lines.append(Line(shape, kernel, *map(int, numbers), {*matrix.split(", ")} - {"none"}))
    return lines


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a machine that is busy with the other targets
@pytest.mark.parametrize("target", MOST_SHARED_BYTES)
def test_kernels_compile_within_limits(target: str, tmp_path: Path) -> None:
    lines = report(target, tmp_path)
    kernels = {"decode", "merge", "prefill", "append", "gather", "scatter", "linear", "norm", "silu"}
    assert {line.kernel for line in lines} == kernels
    assert {line.half for line in lines} == {True, False}
    if CHOSEN[target]:  # sm_75 has no bf16
        assert {line.shape for line in lines} == {*CHOSEN[target]} - (OF_BF16 if target == "sm_75" else set())
    for line in lines:
        assert line.shared_bytes <= MOST_SHARED_BYTES[target], line
        assert 0 < line.registers <= MOST_REGISTERS.get(target, 255), line
        unfit = target == "sm_75" and line.half
        most = UNFIT_SPILLED_BYTES if unfit else MOST_SPILLED_BYTES.get(target, USUAL_SPILLED_BYTES)
        assert line.spilled_bytes <= most, line
        if target in MATRIX and line.kernel in ("decode", "prefill", "linear"):
            # float32 is computed as float32: its control, on NVIDIA, is that no tensor core takes part.
            assert bool(line.matrix) == (line.half or target == "gfx942"), line
            assert line.matrix <= MATRIX[target], line
    used = {name for line in lines for name in line.matrix}
    assert used == MATRIX.get(target, set())


PREPARED = """
import torch
from cyberkv.runtime.cuda.kernels import linear, norms
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

def prepared(kernel, *given, **constants):
    backend = make_backend(GPUTarget("cuda", 90, 32))
    return str(create_function_from_signature(kernel.signature, kernel.params, backend)(*given, **constants)[1])

t = torch.zeros(4096)
tiles = dict(tile_rows=64, tile_outputs=64, tile_inputs=64, grouped=16, biased=True)
rows = [prepared(linear.multiply_rows, t, t, t, t, n, inputs=64, outputs=64, **tiles) for n in (1, 2, 16, 17)]
norm = dict(columns=64, padded=64, aligned=True)
steps = [prepared(norms.normalise_rows, t[k:], t, t, k, k, k, 1e-5, **norm) for k in (0, 1, 16, 17)]
other = prepared(linear.multiply_rows, t, t, t, t, 1, inputs=65, outputs=64, **tiles)
print(len(set(rows)), len(set(steps)), len({*rows, other}))
"""


@pytest.mark.slow
def test_one_program_is_compiled_for_any_number_of_rows(tmp_path: Path) -> None:
    """What triton compiles a kernel for, of what it is launched with: the last is a matrix of another size."""
    assert uninterpreted(tmp_path, "-c", PREPARED).split() == ["1", "1", "2"]


@pytest.mark.slow
def test_one_program_of_each_kernel_is_compiled_for_any_step(tmp_path: Path) -> None:
    """Whatever the parts, their rows and the width of tables: else a step would wait for a compiler now and then, and
    canonical rows would not all go through the same instructions."""
    said = dict(
        line.split() for line in uninterpreted(tmp_path, str(Path(__file__).with_name("absent.py"))).splitlines()
    )
    assert said == dict.fromkeys(("decode_panels", "merge_panels", "prefill_tiles", "append_slots"), "1")
