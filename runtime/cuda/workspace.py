"""What the steps over one device pool share: page tables on the device, what describes each layer, captured steps.

It is to a device what memory for rotated copies is to the host, and takes next to none: kernels read raw rows and turn
them on their way in.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from ...cybergraph.errors import OutOfRange, TierFull
from ..models.config import DecoderConfig
from ..models.decoder import Decoder
from .cache import AttentionKernels, Form, Numbers, PagedCache, Part, attentions_of, numbers_of
from .device import ENTRY_DTYPE
from .devicepool import BlockTables, DevicePool
from .graphs import Graphs

LEAST_WIDTH: Final = 16
"""Blocks of a page table at first; it doubles."""


class Workspace:
    """Of one engine. For one thread."""

    left_bytes: Final = sys.maxsize
    """What sequences may still take beside the pool."""

    def __init__(
        self, pool: DevicePool, config: DecoderConfig, kernels: AttentionKernels, turns: tuple[Tensor, Tensor],
        *, captures: bool = True,
    ) -> None:  # fmt: skip
        """Prepare. `turns` are cosines and sines on the device, [positions, rotary_dims / 2] float32 each.

        With `captures`, steps of one row for each sequence are captured and launched as a whole.
        """
        self.pool, self.config = pool, config
        self.graphs = Graphs(pool.device) if captures else None
        self._kernels, self._turns = kernels, turns
        self._attentions = attentions_of(config, pool.geometry)
        self._tables = BlockTables(pool, 1, LEAST_WIDTH)
        self._tables_parts = 1
        self._numbers = pool.device.empty(0).view(ENTRY_DTYPE)

    @torch.no_grad()
    def run(
        self, decoder: Decoder, parts: Sequence[Part], *, provisional: bool = False, writes: bool = True,
        before: Callable[[int], None] | None = None,
    ) -> Tensor:  # fmt: skip
        """Compute a step. Shapes: n tokens of all parts -> hidden states [n, hidden_size].

        `provisional` rows, one of each part, go the fast way; the others are canonical. Effects: unless `writes` is
        false, raw K and V stand in the rows of the tables afterwards; after an error, what stood at the positions of
        the parts and behind is anything. `before` is called for each layer right before it is computed. Raises
        `OutOfRange`, `TierFull`.
        """
        positions = self._turns[0].shape[0]
        if beyond := [part.end for part in parts if part.end > positions]:
            raise OutOfRange(
                f"position {beyond[0] - 1} is beyond the model's {positions} positions",
                hint="fork or start a shorter conversation",
                positions=positions,
            )
        with _out_of_memory():
            form = Form(tuple(len(part.tokens) for part in parts), self._place(parts), provisional, writes)
            tables, numbers = self._tables.tensor, numbers_of(parts)
            shown, pages = tables[: len(parts), : form.width], self.pool.rows

            def forward(memory: Tensor) -> Tensor:
                at = Numbers(memory, rows=sum(form.rows), parts=len(form.rows))
                cache = PagedCache(self._kernels, pages, self._attentions, self._turns, form, at, shown, before)
                return decoder.forward(at.tokens, 0, sum(form.rows), cache)

            if self.graphs is not None and form.single and writes and before is None:
                return self.graphs.run((decoder, form), (tables,), numbers, forward).clone()
            return forward(self._upload(numbers))

    def _place(self, parts: Sequence[Part]) -> int:
        """Have the tables of all parts on the device, and give how many blocks of them are looked at."""
        if len(parts) > self._tables_parts:
            most = max(len(parts), 2 * self._tables_parts)
            self._tables, self._tables_parts = BlockTables(self.pool, most, self._tables.tensor.shape[1]), most
        for number, part in enumerate(parts):
            self._tables.set(number, part.table)
        size = self.pool.geometry.block_size
        blocks = max(-(-part.end // size) for part in parts)
        return min(max(LEAST_WIDTH, 1 << (blocks - 1).bit_length()), self._tables.tensor.shape[1])

    def _upload(self, numbers: list[int]) -> Tensor:
        device = self.pool.device
        if len(numbers) > len(self._numbers):
            self._numbers = device.empty(len(numbers) * ENTRY_DTYPE.itemsize).view(ENTRY_DTYPE)
        device.upload(self._numbers[: len(numbers)], numbers, device.compute)
        return self._numbers[: len(numbers)]

    def copy_bytes(self, length_tokens: int) -> int:  # noqa: ARG002 - of a rotated copy it depends on the length
        """Say what a sequence of this length takes beside the pool: nothing."""
        return 0


@contextmanager
def _out_of_memory() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TierFull(
            "no room on the device for what a step works in",
            hint="give the pool less of it with --device-memory, or close what else uses the device",
        ) from error
