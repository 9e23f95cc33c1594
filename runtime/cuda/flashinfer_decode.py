"""Decoding by FlashInfer, where it is installed: for provisional rows alone. Everything else is by the fixed kernels.

FlashInfer reads pages as they lie in the pool (its layout NHD, a layer's view with any step between pages) and turns K
on its way in, if the rotation is a plain one: by the key's place in the list of pages that it is given. Attention sees
distances only, so where a sequence's first key stands does not matter, nor that pages behind a window are left out of
the list. How it splits its sums follows from the batch: no two steps need have the same bits.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ..quant import DTYPES
from .arithmetic import Kernels
from .kernels.checks import require_decode
from .support import Attention

WORKSPACE_BYTES: Final = 128 << 20
"""What FlashInfer's own examples set aside for partial sums."""


@dataclass(frozen=True, slots=True)
class PageList:
    """Which pages each sequence reads, as FlashInfer takes it: int32 on the host."""

    indptr: Tensor
    """[batch + 1]: where each sequence's pages begin in `indices`."""
    indices: Tensor
    """Rows of the pool."""
    last_page_len: Tensor
    """[batch]: slots used of each sequence's last page."""


def list_pages(tables: Tensor, lengths: Tensor, attention: Attention) -> PageList:
    """List the pages that the last row of each sequence sees. Pure. Shapes: tables [batch, pages], lengths [batch].

    >>> a = Attention(heads=1, kv_heads=1, head_dim=64, page_size=16, dtype="f16", scale=1.0, rotary_dims=64, window=20)
    >>> pages = list_pages(torch.tensor([[7, 8, 9], [5, -1, -1]]), torch.tensor([40, 16]), a)
    >>> pages.indptr.tolist(), pages.indices.tolist(), pages.last_page_len.tolist()
    ([0, 2, 3], [8, 9, 5], [8, 16])
    """
    size, window = attention.page_size, attention.window
    indptr, indices, last = [0], list[int](), list[int]()
    for table, length in zip(tables.tolist(), lengths.tolist(), strict=True):
        first = 0 if window is None else max(0, length - window)
        # Entries before the first page that is seen may name rows that are somebody else's by now.
        indices += table[first // size : -(-length // size)]
        indptr.append(len(indices))
        last.append((length - 1) % size + 1 if length else 0)
    return PageList(*(torch.tensor(numbers, dtype=torch.int32) for numbers in (indptr, indices, last)))


@dataclass(slots=True)
class _Planned:
    """A wrapper of FlashInfer and what it was planned for."""

    wrapper: Any
    tables: Tensor | None = None
    lengths: Tensor | None = None
    versions: tuple[int, int] = (0, 0)


class FlashInferDecode:
    """See `Kernels`. For one stream of one device."""

    def __init__(self, module: Any, fixed: Kernels, theta: float | None) -> None:
        """Take the module `flashinfer`, what computes canonical rows, and the base of the rotation."""
        self._module, self._theta = module, theta
        self._workspace: Tensor | None = None
        self._planned: dict[Attention, _Planned] = {}
        self.append_rows, self.paged_prefill = fixed.append_rows, fixed.paged_prefill
        self.linear, self.rms_norm, self.silu_mul = fixed.linear, fixed.rms_norm, fixed.silu_mul

    def paged_decode(
        self, q: Tensor, kv: Tensor, tables: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
        attention: Attention,
    ) -> Tensor:  # fmt: skip
        """See `launch.paged_decode`; each length is at least 1.

        Effects: plans, and for that waits for the device, once for all layers that ask with the same tables and
        lengths; so it is not for steps that are captured. Raises `UnsupportedModel`.
        """
        require_decode(q, kv, tables, lengths, bases, cos, sin, attention)
        if q.shape[0] == 0:
            return torch.empty_like(q)
        result: Tensor = self._plan(tables, lengths, attention).run(q.contiguous(), kv)
        return result

    def _plan(self, tables: Tensor, lengths: Tensor, attention: Attention) -> Any:
        """Give a wrapper that is planned for these tables and lengths, by what they hold now."""
        if (planned := self._planned.get(attention)) is None:
            if self._workspace is None:
                self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=tables.device)
            # On tensor cores, any number of query heads may share a KV head.
            wrapper = self._module.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=True)
            planned = self._planned[attention] = _Planned(wrapper)
        versions = (tables._version, lengths._version)  # noqa: SLF001 - the same tensor may hold other numbers
        if planned.tables is tables and planned.lengths is lengths and planned.versions == versions:
            return planned.wrapper
        pages, a = list_pages(tables.cpu(), lengths.cpu(), attention), attention
        planned.wrapper.plan(
            pages.indptr, pages.indices, pages.last_page_len, a.heads, a.kv_heads, a.head_dim, a.page_size,
            pos_encoding_mode="ROPE_LLAMA" if a.rotary_dims else "NONE",
            # Its windows count the keys before a row, ours the row as well.
            window_left=-1 if a.window is None else a.window - 1,
            logits_soft_cap=a.softcap, sm_scale=a.scale, rope_scale=1.0, rope_theta=self._theta,
            q_data_type=DTYPES[a.dtype], kv_data_type=DTYPES[a.dtype],
        )  # fmt: skip
        planned.tables, planned.lengths, planned.versions = tables, lengths, versions
        return planned.wrapper
