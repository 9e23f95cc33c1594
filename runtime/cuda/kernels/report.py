"""What the kernels take on each target, as a table.

`python -m cyberkv.runtime.cuda.kernels.report [TARGET ...] [SHAPE ...]`: all targets or these, all shapes or these.
"""

import sys
from collections.abc import Container, Iterator, Sequence
from typing import Final

from ..support import LEAST_CAPABILITY_BF16, Attention, unsupported
from .offline import ATTENTION, COPIES, ROWWISE, TARGETS, Rowwise, Taken, compiled

SHAPES: Final = {
    "bf16, 32/8 heads of 128": Attention(32, 8, 128, 16, "bf16", 128**-0.5, 128),
    "the same, K rotated already": Attention(32, 8, 128, 16, "bf16", 128**-0.5, 128, rotated=True),
    "f16, 8/4 heads of 256, capped": Attention(8, 4, 256, 64, "f16", 256**-0.5, 256, window=4096, softcap=50.0),
    "f16, 32/32 heads of 80, partly rotated": Attention(32, 32, 80, 16, "f16", 80**-0.5, 32),
    "f32, 9/3 heads of 64": Attention(9, 3, 64, 16, "f32", 0.125, 64),
    "f32, 32/8 heads of 128": Attention(32, 8, 128, 16, "f32", 128**-0.5, 128),
    "f32, 8/4 heads of 256, capped": Attention(8, 4, 256, 64, "f32", 256**-0.5, 256, window=4096, softcap=50.0),
}
"""The common shapes, and those that take most."""

MATRICES: Final = {
    "bf16, 4096 to 28672": Rowwise("bf16", 4096, 28672),
    "bf16, 14336 to 4096": Rowwise("bf16", 14336, 4096),
    "f16, 2048 to 2048": Rowwise("f16", 2048, 2048),
    "f32, 576 to 3072": Rowwise("f32", 576, 3072),
    "f32, 4096 to 4096": Rowwise("f32", 4096, 4096),
}
"""Weights of the common models: wide and narrow tiles, rows that end inside a tile."""

COPIED: Final = SHAPES["f16, 32/32 heads of 80, partly rotated"]
ANY: Final = "f16, any"
"""The copies are the same in every shape."""


def rows(target: str, chosen: Container[str] = (*SHAPES, *MATRICES, ANY)) -> Iterator[tuple[str, Taken]]:
    """Compile attention and products in every chosen shape that the target supports, and the copies in one."""
    capability = TARGETS[target].arch if TARGETS[target].backend == "cuda" else None
    for name, attention in SHAPES.items():
        if name in chosen and unsupported(attention, capability=capability) is None:
            for kernel in ATTENTION:
                yield name, compiled(kernel, attention, target)
    for name, shape in MATRICES.items():
        known = shape.dtype != "bf16" or capability is None or capability >= LEAST_CAPABILITY_BF16
        if name in chosen and known:
            for kernel in ROWWISE:
                yield name, compiled(kernel, shape, target)
    if ANY in chosen:
        for kernel in COPIES:
            yield ANY, compiled(kernel, COPIED, target)


def main(words: Sequence[str]) -> None:
    """Print the table, one line as soon as it is known. Exits where a word is neither a target nor a shape."""
    names = (*SHAPES, *MATRICES, ANY)
    if unknown := [word for word in words if word not in TARGETS and word not in names]:
        raise SystemExit(f"no target or shape: {unknown[0]!r}; shapes are {'; '.join(names)}")
    targets = [word for word in words if word in TARGETS]
    chosen = [word for word in words if word in names] or names
    print("| target | shape | kernel | registers | spilled B | shared B | matrix products |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for target in targets or [*TARGETS]:
        for name, t in rows(target, chosen):
            numbers = f"{t.registers} | {t.spilled_bytes} | {t.shared_bytes} | {', '.join(t.matrix) or 'none'}"
            print(f"| {target} | {name} | {t.kernel} | {numbers} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
