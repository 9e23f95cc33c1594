"""What the GPU kernels are compared with: the memory itself, torch's attention, FlashInfer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .gpu import Bench
from .gpu_pages import Pages

WORKSPACE_BYTES = 256 << 20


class Memory:
    """A copy on the device, and a read: what memory gives to whoever does nothing else."""

    def __init__(self, bench: Bench) -> None:
        self.size_bytes = bench.size(1 << 30, 256 << 20, 1 << 12)
        self._source = torch.rand(self.size_bytes // 4, dtype=torch.float32, device=bench.device)
        self._target = torch.empty_like(self._source)

    def copy(self) -> None:
        """Move `2 * size_bytes`."""
        self._target.copy_(self._source)

    def read(self) -> None:
        """Move `size_bytes`."""
        self._source.sum()

    def fastest(self, copies_s: list[float], reads_s: list[float]) -> list[float]:
        """Give the bytes a second of the faster of the two, round by round."""
        return [max(2 * self.size_bytes / c, self.size_bytes / r) for c, r in zip(copies_s, reads_s, strict=True)]


def sdpa(q: Tensor, pages: Pages) -> Callable[[], Tensor]:
    """Torch's attention over K and V that lie side by side; gathering them is in no figure.

    Shapes: q [batch, rows, heads, head_dim], the last rows of each sequence, or all of them -> as q. One row takes what
    torch chooses by itself, more rows its flash kernel.
    """
    keys, values = pages.gathered()
    asking, causal = q.transpose(1, 2).contiguous(), q.shape[1] > 1
    if causal and q.shape[1] != keys.shape[2]:
        raise ValueError("a chunk of rows begins at the first position")

    def attend() -> Tensor:
        with flash() if causal and q.is_cuda else nullcontext():
            return F.scaled_dot_product_attention(
                asking, keys, values, is_causal=causal, scale=pages.attention.scale, enable_gqa=True
            ).transpose(1, 2)

    return attend


def flash() -> AbstractContextManager[object]:
    """Have torch take its flash kernel or fail."""
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def flashinfer_decode(q: Tensor, pages: Pages) -> Callable[[], Tensor]:
    """FlashInfer's decode over the same pages. Raises `ImportError` where it is not installed."""
    flashinfer: Any = import_module("flashinfer")
    a, (batch, width) = pages.attention, pages.tables.shape
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device), "NHD", use_tensor_cores=True
    )
    ends = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * width
    full = torch.full((batch,), a.page_size, dtype=torch.int32, device=q.device)
    wrapper.plan(
        ends, pages.tables.flatten(), full, a.heads, a.kv_heads, a.head_dim, a.page_size, pos_encoding_mode="NONE",
        q_data_type=q.dtype, kv_data_type=q.dtype, sm_scale=a.scale,
    )  # fmt: skip
    return partial(wrapper.run, q, pages.kv)
