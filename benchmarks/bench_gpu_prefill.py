"""Prefill attention on the GPU, over pages and over itself, against torch's flash kernel.

One prompt of 8,192 rows from position 0, 32 heads over 8 KV heads of 128, bf16. The peer's K and V were gathered
before; ours are read from pages. Ours sums in the canonical order.
"""

from collections.abc import Sequence

import torch

from .gpu import Bench, options, require_close
from .gpu_pages import HEAD_DIM, HEADS, Pages
from .gpu_peers import sdpa

CLAIM = ("prefill without rotation, speed vs torch's flash kernel", 0.7, "scaled_dot_product_attention, flash kernel")


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("Prefill attention on the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(CLAIM)
    rows = bench.size(8192, 2048, 32)
    turned = Pages.random(bench, 1, rows)
    plain = turned.plain()
    q = bench.random(1, rows, HEADS, HEAD_DIM, seed=1)
    with torch.no_grad():
        if (peer := bench.answer(CLAIM, lambda: sdpa(q, plain))) is None:
            return bench.report()
        require_close(plain.prefill(q)(), peer.result)
        ours, peers, fused = bench.on_device_s(plain.prefill(q), peer.run, turned.prefill(q), rounds=15)
    bench.claim(*CLAIM, ours, peers)
    operations = 2 * HEADS * HEAD_DIM * rows * (rows + 1)  # two products, of which half is behind the diagonal
    for name, times in {"without rotation": ours, "torch's flash kernel": peers, "with fused rotation": fused}.items():
        bench.figure(f"{name}, us", times)
        bench.figure(f"{name}, TFLOP/s", times, lambda s: operations / s / 1e12)
    return bench.report()


if __name__ == "__main__":
    raise SystemExit(main())
