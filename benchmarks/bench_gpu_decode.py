"""Decode attention on the GPU, straight from pages, against the memory it reads, torch's attention and FlashInfer.

Sixteen sequences of 8,192 tokens, 32 heads over 8 KV heads of 128, bf16, in pages of 16 tokens that lie anywhere. What
is read is counted as K and V, once: the share of the memory's speed is that at least.
"""

from collections.abc import Sequence

import torch

from .gpu import Bench, options, require_close
from .gpu_pages import HEAD_DIM, HEADS, Pages
from .gpu_peers import Memory, flashinfer_decode, sdpa

CLAIMS = [
    ("decode with fused rotation, share of the memory's speed", 0.85, "the faster of a device copy and a read"),
    ("decode without rotation, speed vs torch", 1.0, "scaled_dot_product_attention, K and V gathered before"),
    ("decode without rotation, speed vs FlashInfer", 0.9, "FlashInfer, over the same pages"),
    ("decode of raw pages with fused rotation vs rotated pages", 0.9, "the same kernel over rotated pages"),
]


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("Decode attention on the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(*CLAIMS)
    batch, length = bench.size(16, 8, 2), bench.size(8192, 2048, 32)
    pages = Pages.random(bench, batch, length)
    q = bench.random(batch, HEADS, HEAD_DIM, seed=1)
    with torch.no_grad():
        _memory(bench, pages, q)
        _rotated(bench, pages, q)
        _torch(bench, pages.plain(), q)
        _flashinfer(bench, pages.plain(), q)
    return bench.report()


def _memory(bench: Bench, pages: Pages, q: torch.Tensor) -> None:
    memory = Memory(bench)
    ours, copies, reads = bench.on_device_s(pages.decode(q), memory.copy, memory.read)
    rates = memory.fastest(copies, reads)
    bench.claim(*CLAIMS[0], ours, [pages.kv_bytes / rate for rate in rates])
    bench.figure("decode with fused rotation, us", ours)
    bench.figure("decode with fused rotation, GB/s of K and V", ours, lambda s: pages.kv_bytes / s / 1e9)
    bench.figure("a device copy, GB/s read and written", copies, lambda s: 2 * memory.size_bytes / s / 1e9)
    bench.figure("a read, GB/s", reads, lambda s: memory.size_bytes / s / 1e9)


def _torch(bench: Bench, pages: Pages, q: torch.Tensor) -> None:
    if (peer := bench.answer(CLAIMS[1], lambda: sdpa(q[:, None], pages))) is None:
        return
    require_close(pages.decode(q)(), peer.result[:, 0])
    ours, peers = bench.on_device_s(pages.decode(q), peer.run)
    bench.claim(*CLAIMS[1], ours, peers)
    bench.figure("decode without rotation, us", ours)
    bench.figure("torch, us", peers)


def _flashinfer(bench: Bench, pages: Pages, q: torch.Tensor) -> None:
    if bench.dry:
        bench.unmeasured(*CLAIMS[2], "FlashInfer needs a device")
        return
    if (peer := bench.answer(CLAIMS[2], lambda: flashinfer_decode(q, pages))) is None:
        return
    require_close(pages.decode(q)(), peer.result)
    ours, peers = bench.on_device_s(pages.decode(q), peer.run)
    bench.claim(*CLAIMS[2], ours, peers)
    bench.figure("FlashInfer, us", peers)


def _rotated(bench: Bench, pages: Pages, q: torch.Tensor) -> None:
    ours, peers = bench.on_device_s(pages.decode(q), pages.rotated().decode(q))
    bench.claim(*CLAIMS[3], ours, peers)
    bench.figure("decode of rotated pages, us", peers)


if __name__ == "__main__":
    raise SystemExit(main())
