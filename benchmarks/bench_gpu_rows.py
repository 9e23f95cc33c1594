"""Canonical matrix products on the GPU, whose bits do not depend on how many rows there are, against cuBLAS.

The four products of one layer of an 8B model (hidden 4,096, feed-forward 14,336), bf16. The claim is about the sum of
the four at 4,096 rows (512 with `--quick`); fewer rows are figures. The norm and the gate stand beside torch's.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .gpu import Bench, options, require_close

CLAIM = ("products of a layer, canonical, speed vs cuBLAS", 0.9, "torch.nn.functional.linear")
SHAPES = {"qkv": (4096, 6144), "o": (4096, 4096), "gate and up": (4096, 28672), "down": (14336, 4096)}
"""Inputs and outputs."""
FEWER = (1, 16, 512)


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("Canonical rows on the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(CLAIM)
    shrink = bench.size(1, 1, 128)
    shapes = {name: (inputs // shrink, outputs // shrink) for name, (inputs, outputs) in SHAPES.items()}
    weights = {name: bench.random(outputs, inputs, seed=outputs) / inputs**0.5
               for name, (inputs, outputs) in shapes.items()}  # fmt: skip
    with torch.no_grad():
        _products(bench, weights, bench.size(4096, 512, 3), claimed=True)
        for rows in () if bench.args.quick or bench.dry else FEWER:
            _products(bench, weights, rows, claimed=False)
        _between(bench, weights, bench.size(4096, 512, 3))
    return bench.report()


def _products(bench: Bench, weights: dict[str, Tensor], rows: int, *, claimed: bool) -> None:
    """Time each product by itself: what one reads is not in cache for the next."""
    total, totals = [0.0], [0.0]
    for name, weight in weights.items():
        x = bench.random(rows, weight.shape[1], seed=rows)
        ours, peer = _linear(bench, x, weight), _cublas(x, weight)
        require_close(ours(), peer())
        own_s, peers_s = bench.on_device_s(ours, peer, rounds=15)
        bench.figure(f"{name}, {rows} rows, us", own_s)
        bench.figure(f"{name}, {rows} rows, cuBLAS, us", peers_s)
        total, totals = _added(total, own_s), _added(totals, peers_s)
    if claimed:
        bench.claim(*CLAIM, total, totals)


def _linear(bench: Bench, x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    kernels = bench.kernels
    return lambda: kernels.linear(x, weight)


def _cublas(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    return lambda: F.linear(x, weight)


def _added(sums: list[float], more: list[float]) -> list[float]:
    """Add round by round; the first sum is 0 for every round."""
    return [one + other for one, other in zip(sums if len(sums) > 1 else sums * len(more), more, strict=True)]


def _between(bench: Bench, weights: dict[str, Tensor], rows: int) -> None:
    kernels, hidden = bench.kernels, weights["qkv"].shape[1]
    x, weight = bench.random(rows, hidden, seed=2), bench.random(hidden, seed=3)
    both = bench.random(rows, weights["gate and up"].shape[0], seed=4)

    def gate() -> Tensor:
        one, other = both.chunk(2, dim=-1)
        return F.silu(one) * other

    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "norm": (lambda: kernels.rms_norm(x, weight, 1e-5), lambda: F.rms_norm(x, (hidden,), weight, 1e-5)),
        "gate": (lambda: kernels.silu_mul(both), gate),
    }
    for name, (ours, peer) in pairs.items():
        require_close(ours(), peer())
        own_s, peers_s = bench.on_device_s(ours, peer)
        bench.figure(f"{name}, {rows} rows, us", own_s)
        bench.figure(f"{name}, {rows} rows, torch, us", peers_s)


if __name__ == "__main__":
    raise SystemExit(main())
