"""Sequences of random K and V in a pool whose every other number is NaN, so that whatever reads one shows."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.kernels import launch
from cyberkv.runtime.cuda.support import Attention
from cyberkv.runtime.quant import DTYPES

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYERS, LAYER = 2, 1
POSITIONS = 2048
NOWHERE = -1
"""What a table says where nobody may look."""

BOUNDS = {"f32": 2e-6, "f16": 1e-2, "bf16": 1e-2}


def attention(heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: str = "f32", **more: Any) -> Attention:
    more.setdefault("rotary_dims", head_dim)
    return Attention(heads, kv_heads, head_dim, page_size, dtype, head_dim**-0.5, **more)


def tables_of_turns(attention: Attention) -> tuple[Tensor, Tensor]:
    return _turns(attention.rotary_dims // 2)


@cache
def _turns(planes: int) -> tuple[Tensor, Tensor]:
    """Made once: nothing may come from the host while a step is captured."""
    speeds = 10000.0 ** (-torch.arange(planes) / max(1, planes))
    angles = torch.arange(POSITIONS)[:, None] * speeds[None, :]
    return angles.cos().to(DEVICE), angles.sin().to(DEVICE)


def random(*shape: int, dtype: str, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DTYPES[dtype])


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@dataclass
class Case:
    """Sequences in pages of one layer, and what asks them."""

    attention: Attention
    pool: Tensor
    tables: Tensor
    lengths: Tensor
    bases: Tensor

    @property
    def kv(self) -> Tensor:
        return self.pool[:, LAYER]

    def slot(self, request: int, position: int) -> Tensor:
        """K and V of one position: a view. Shape: [2, kv_heads, head_dim]."""
        size = self.attention.page_size
        return self.kv[int(self.tables[request, position // size]), :, position % size]

    def ask(self, rows: int, seed: int = 1) -> Tensor:
        a = self.attention
        return random(len(self.lengths), rows, a.heads, a.head_dim, dtype=a.dtype, seed=seed).to(DEVICE)

    def decode(self, q: Tensor) -> Tensor:
        cos, sin = tables_of_turns(self.attention)
        return launch.paged_decode(q, self.kv, self.tables, self.lengths, self.bases, cos, sin, self.attention)

    def prefill(self, q: Tensor, starts: list[int]) -> Tensor:
        cos, sin = tables_of_turns(self.attention)
        return launch.paged_prefill(
            q, self.kv, self.tables, ints(starts), self.lengths, self.bases, cos, sin, self.attention
        )

    def expected(self, q: Tensor, starts: list[int]) -> Tensor:
        cos, sin = tables_of_turns(self.attention)
        given = (q, self.kv, self.tables, ints(starts), self.lengths, self.bases, cos, sin)
        return reference.paged_prefill(*(each.cpu() for each in given), self.attention).to(DEVICE)

    def only(self, requests: list[int]) -> "Case":
        return replace(
            self, tables=self.tables[requests], lengths=self.lengths[requests], bases=self.bases[requests]
        )  # fmt: skip


def case(
    attention: Attention,
    lengths: list[int],
    *,
    bases: list[int] | None = None,
    content: int = 0,
    order: int = 0,
    fill: float = float("nan"),
    wider: int = 0,
) -> Case:
    """Place sequences whose rows follow from `content` alone into pages in an order that follows from `order`."""
    a = attention
    pages = [-(-length // a.page_size) for length in lengths]
    capacity = sum(pages) + 3
    pool = torch.full((capacity, LAYERS, 2, a.page_size, a.kv_heads, a.head_dim), fill, dtype=DTYPES[a.dtype])
    free = torch.randperm(capacity, generator=torch.Generator().manual_seed(order)).tolist()
    tables = torch.full((len(lengths), max([1, *pages]) + wider), NOWHERE, dtype=torch.int32)
    for request, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        rows = random(length, 2, a.kv_heads, a.head_dim, dtype=a.dtype, seed=1000 * content + request)
        for page in range(count):
            tables[request, page] = row = free.pop()
            part = rows[page * a.page_size : (page + 1) * a.page_size]
            pool[row, LAYER, :, : len(part)] = part.transpose(0, 1)
    return Case(a, pool.to(DEVICE), tables.to(DEVICE), ints(lengths), ints(bases or [0] * len(lengths)))


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


def distance(got: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest number expected; NaN anywhere is infinitely far."""
    gap = (got.double() - expected.double()).abs().amax() / expected.double().abs().amax()
    return float("inf") if gap.isnan() else float(gap)
