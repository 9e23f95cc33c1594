"""Pages of random K and V as the pool has them, and the same rows as the peers of the GPU benchmarks want them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cyberkv.runtime.cuda.support import Attention

from .gpu import Bench

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
"""The shape of an 8B model."""
POOL_LAYERS = 4
"""Layers of a pool row: the pages of one layer do not lie side by side, as in a real pool."""


def attention_of(bench: Bench, *, turned: bool) -> Attention:
    """The 8B model's attention, with rotation on the way in or none at all."""
    return Attention(HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, bench.dtype_name, HEAD_DIM**-0.5, HEAD_DIM if turned else 0)


@dataclass
class Pages:
    """Sequences of one length in one layer of a pool, anywhere in it."""

    bench: Bench
    attention: Attention
    kv: Tensor
    tables: Tensor
    lengths: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def random(cls, bench: Bench, batch: int, length: int, *, turned: bool = True) -> "Pages":
        """Fill whole pages. Shape: kv is one layer of [pages, layers, 2, page_size, kv_heads, head_dim]."""
        if length % PAGE_SIZE:
            raise ValueError(f"{length} is not whole pages of {PAGE_SIZE}")
        pages = length // PAGE_SIZE
        pool = torch.empty(
            batch * pages, POOL_LAYERS, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM, dtype=bench.dtype, device=bench.device
        )
        kv = pool[:, 1]
        for number in range(batch):
            part = kv[number * pages : (number + 1) * pages]
            part.copy_(bench.random(*part.shape, seed=number))
        order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0))
        speeds = 500000.0 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
        angles = torch.arange(length)[:, None] * speeds[None, :]
        return cls(
            bench, attention_of(bench, turned=turned), kv,
            order.view(batch, pages).to(torch.int32).to(bench.device), bench_ints([length] * batch, bench),
            angles.cos().to(bench.device), angles.sin().to(bench.device),
        )  # fmt: skip

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that one call has to read: every page once."""
        return self.tables.numel() * self.kv[0].numel() * self.kv.element_size()

    def rotated(self) -> "Pages":
        """Call the same pages rotated already: for the time that takes, not for what comes out."""
        return replace(self, attention=replace(self.attention, rotated=True))

    def plain(self) -> "Pages":
        """Ask without any rotation: what the peers compute."""
        return replace(self, attention=replace(self.attention, rotary_dims=0))

    def decode(self, q: Tensor) -> Callable[[], Tensor]:
        """Attend from the last position of each sequence. Shape: q [batch, heads, head_dim]."""
        kernels, bases = self.bench.kernels, torch.zeros_like(self.lengths)
        return lambda: kernels.paged_decode(
            q, self.kv, self.tables, self.lengths, bases, self.cos, self.sin, self.attention
        )  # fmt: skip

    def prefill(self, q: Tensor) -> Callable[[], Tensor]:
        """Attend from the last rows of each sequence. Shape: q [batch, rows, heads, head_dim]."""
        kernels, bases = self.bench.kernels, torch.zeros_like(self.lengths)
        starts = self.lengths - q.shape[1]
        return lambda: kernels.paged_prefill(
            q, self.kv, self.tables, starts, self.lengths, bases, self.cos, self.sin, self.attention
        )  # fmt: skip

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Copy K and V side by side, in order. Shapes: [batch, kv_heads, length, head_dim]."""
        rows = self.kv[self.tables.long()]  # [batch, pages, 2, page_size, kv_heads, head_dim]
        keys, values = (rows[:, :, part].flatten(1, 2).transpose(1, 2).contiguous() for part in (0, 1))
        return keys, values


def bench_ints(values: list[int], bench: Bench) -> Tensor:
    """Give int32 on the device."""
    return torch.tensor(values, dtype=torch.int32, device=bench.device)
