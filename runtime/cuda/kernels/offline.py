# mypy: disable-error-code="import-untyped"
"""Compile the kernels for devices that are not here, and read what they take from what the compiler made.

For NVIDIA the numbers are those of `ptxas -v`, which triton brings along; for AMD those in the assembler's metadata.
Effects: compiles (seconds a kernel), in triton's own cache folder; runs nothing.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from ..support import Attention
from .copies import append_slots, copy_words
from .decode import decode_panels, merge_panels
from .launch import COPIED_WORDS
from .linear import multiply_rows
from .norms import multiply_silu, normalise_rows
from .prefill import prefill_tiles
from .tiles import (
    SILU_NUMBERS,
    UNFUSED,
    decode_cut,
    linear_cut,
    norm_warps,
    options,
    power_of_two,
    prefill_cut,
    shape_of,
)

TARGETS: Final = {
    "sm_75": GPUTarget("cuda", 75, 32),
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

ELEMENTS: Final = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}

_FLOATS: Final = {"cos", "sin", "outs", "lses"}
_INTEGERS: Final = {"tables", "lengths", "starts", "bases", "requests", "positions", "indices"}
_FACTORS: Final = {"inner", "outer", "eps"}
_ROUND: Final = {"q_request", "q_row", "q_head", "kv_page", "kv_part", "kv_slot", "kv_head", "table_row",
                 "k_row", "k_head", "v_row", "v_head", "source_row", "target_row"}  # fmt: skip
"""Strides that are multiples of 16 elements in every supported shape, of which the compiler makes use."""

MATRIX_OPERATIONS: Final = ("mma.sync", "wgmma.mma_async", "tcgen05.mma", "v_mfma")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one compiled kernel takes of a device."""

    kernel: str
    target: str
    registers: int
    """Of each thread."""
    spilled_bytes: int
    """Stores and loads of registers that did not fit, of each thread; on AMD registers times 4."""
    shared_bytes: int
    """Of one program."""
    matrix: tuple[str, ...]
    """Which instructions for matrix products there are."""


@dataclass(frozen=True, slots=True)
class Rowwise:
    """Rows of a model between its attention calls."""

    dtype: str
    inputs: int
    outputs: int


def compiled(kernel: str, shape: Attention | Rowwise, target: str) -> Taken:
    """Compile one of `ATTENTION`, `COPIES` or `ROWWISE` for one of `TARGETS`."""
    sources = _sources(shape, TARGETS[target]) if isinstance(shape, Attention) else _rowwise(shape, TARGETS[target])
    function, constexprs, chosen = sources[kernel]
    signature, attributes = {}, {}
    unaligned: Iterable[str] = function.do_not_specialize_on_alignment
    for index, name in enumerate(function.arg_names):
        signature[name] = "constexpr" if name in constexprs else _type(name, shape.dtype)
        if (signature[name].startswith("*") or name in _ROUND) and name not in unaligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constexprs, attributes)
    made = triton.compile(source, target=TARGETS[target], options=chosen)
    text = made.asm["ptx"] if "ptx" in made.asm else made.asm["amdgcn"]
    matrix = tuple(name for name in MATRIX_OPERATIONS if name in text)
    taken = _nvidia(text, TARGETS[target]) if "ptx" in made.asm else _amd(text)
    return Taken(kernel, target, *taken, made.metadata.shared, matrix)


Source = tuple[Any, dict[str, Any], dict[str, Any]]


def _sources(attention: Attention, target: GPUTarget) -> dict[str, Source]:
    """Give each kernel's function, what it is compiled for, and the options, as `launch` does."""
    capability = target.arch if target.backend == "cuda" else None
    decode, prefill = decode_cut(attention), prefill_cut(attention)
    sizes = {"head_dim": attention.head_dim, "padded_dim": power_of_two(attention.head_dim)}
    return {
        "decode": (decode_panels, {"shape": shape_of(attention, decode)}, options(decode, capability)),
        "merge": (merge_panels, sizes, UNFUSED),
        "prefill": (prefill_tiles, {"shape": shape_of(attention, prefill)}, options(prefill, capability)),
        "append": (append_slots, {**sizes, "page_size": attention.page_size}, {"num_warps": 1, **UNFUSED}),
        "gather": (copy_words, {"gather": True, "block": COPIED_WORDS}, {"num_warps": 8, **UNFUSED}),
        "scatter": (copy_words, {"gather": False, "block": COPIED_WORDS}, {"num_warps": 8, **UNFUSED}),
    }


def _rowwise(shape: Rowwise, target: GPUTarget) -> dict[str, Source]:
    """Give the same of what stands between attention calls, as `rowwise` does."""
    capability = target.arch if target.backend == "cuda" else None
    cut = linear_cut(shape.dtype, shape.outputs)
    sizes = {"inputs": shape.inputs, "outputs": shape.outputs, "biased": True}
    columns = shape.inputs
    norm = {"columns": columns, "padded": power_of_two(columns), "aligned": True}
    return {
        "linear": (multiply_rows, {**sizes, **cut.constants}, cut.options(capability)),
        "norm": (normalise_rows, norm, {"num_warps": norm_warps(columns), **UNFUSED}),
        "silu": (multiply_silu, {"columns": columns, "block": SILU_NUMBERS}, {"num_warps": 4, **UNFUSED}),
    }


ATTENTION: Final = ("decode", "merge", "prefill")
COPIES: Final = ("append", "gather", "scatter")
ROWWISE: Final = ("linear", "norm", "silu")

_ELEMENTS: Final = {"q", "kv", "k", "v", "x", "weight", "bias", "gate_up", "result"}


def _type(name: str, dtype: str) -> str:
    if name in _FLOATS:
        return "*fp32"
    if name in _INTEGERS or name in ("source", "target"):
        return "*i32"
    if name in _FACTORS:
        return "fp32"
    if name in _ELEMENTS:
        return f"*{ELEMENTS[dtype]}"
    return "i32"


def _nvidia(ptx: str, target: GPUTarget) -> tuple[int, int]:
    """Registers and spilled bytes, as the assembler says them when called as triton calls it."""
    arch = re.search(r"\.target (sm_\w+)", ptx)
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "kernel.ptx").write_text(ptx)
        said = subprocess.run(
            [get_ptxas(target.arch).path, "-v", "--fmad=false", "--regAllocOptLevel=2",
             f"--gpu-name={arch[1] if arch else target.arch}", "kernel.ptx", "-o", "out"],
            cwd=work, check=True, capture_output=True, text=True,
        ).stderr  # fmt: skip
    registers = re.search(r"Used (\d+) registers", said)
    if registers is None:
        raise RuntimeError(f"the assembler did not say how many registers it used: {said}")
    return int(registers[1]), sum(int(number) for number in re.findall(r"(\d+) bytes spill", said))


def _amd(assembly: str) -> tuple[int, int]:
    """Registers and spilled bytes, from the metadata at the end."""
    numbers = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
    return numbers["vgpr_count"], 4 * (numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"])
