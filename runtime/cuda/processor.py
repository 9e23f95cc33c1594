"""A device as what an engine computes on: see `runtime.steps.processor`."""

import sys
from collections.abc import Sequence as Items
from functools import cache
from typing import Final, cast

from torch import Tensor

from ..geometry import Geometry
from ..models.config import DecoderConfig
from ..models.decoder import Decoder
from ..pool import BlockPool
from ..rope import turns
from ..sequence import Sequence
from ..steps.processor import Seating, WorkingMemory
from ..steps.step import Span
from .arithmetic import DeviceArithmetic, Kernels
from .device import Device
from .devicepool import DevicePool
from .sequence import DeviceSequence
from .step import DeviceSeats, DeviceStep
from .workspace import Workspace

HOST_BYTES: Final = 1 << 30
"""Page-locked host memory for blocks that leave the pool, where no size is given and the system gives so much."""


class DeviceProcessor:
    """See `Processor`. Rows alone go another way than several, so they are provisional, whatever their bytes are."""

    is_threaded: Final = False
    is_single_canonical: Final = False
    cached_bytes: Final = sys.maxsize
    """All of the pool: its memory is set aside at once, and nobody else gets it."""

    def __init__(
        self, device: Device, kernels: Kernels, kind: str, *, memory_bytes: int | None = None,
        host_bytes: int | None = None, captures: bool = True,
    ) -> None:  # fmt: skip
        """Take a device, of a `kind` that names domains. The pool gets `memory_bytes`, by default most of what is free.

        Below it are `host_bytes`, or by default `HOST_BYTES`, or what the system gives of these. With `captures`, small
        steps are captured and launched as a whole.
        """
        self.device, self.kind = device, kind
        self.host_bytes, self._may_be_less = HOST_BYTES if host_bytes is None else host_bytes, host_bytes is None
        self.arithmetic = DeviceArithmetic(device, kernels)
        self.refused_host_bytes = 0
        """Of the default, what the system did not give."""
        self._kernels, self._memory_bytes, self._captures = kernels, memory_bytes, captures
        self._turns = cache(self._make_turns)

    def _make_turns(
        self, rotary_dims: int, base: float, scaling: tuple[tuple[str, str], ...], positions: int
    ) -> tuple[Tensor, Tensor]:
        cos, sin = turns(rotary_dims, base, dict(scaling), positions)
        return self.device.put(cos), self.device.put(sin)

    def pool(self, geometry: Geometry, capacity_blocks: int) -> DevicePool:
        """See `Processor`."""
        return DevicePool(self.device, geometry, capacity_blocks, slot_bytes=geometry.block_bytes, slots=2)

    def engine_pool(self, geometry: Geometry, capacity_tokens: int) -> DevicePool:  # noqa: ARG002 - memory bounds it
        """See `Processor`. Made after the weights are where they are, it takes of what they left.

        Effects: `host_bytes` are lowered to what there is, where no size was given.
        """
        pool = DevicePool.sized(
            self.device, geometry, self._memory_bytes, host_bytes=self.host_bytes, may_be_less=self._may_be_less
        )
        if self._may_be_less:
            wanted_bytes = self.host_bytes // geometry.block_bytes * geometry.block_bytes
            self.host_bytes, self.refused_host_bytes = pool.host_bytes, wanted_bytes - pool.host_bytes
        return pool

    def memory(self, config: DecoderConfig, pool: BlockPool) -> Workspace:
        """See `Processor`."""
        tables = self._turns(config.rotary_dims, config.rope_base, config.rope_scaling, config.max_positions)
        return Workspace(cast("DevicePool", pool), config, self._kernels, tables, captures=self._captures)

    def sequence(self, config: DecoderConfig, pool: BlockPool, memory: WorkingMemory) -> Sequence:  # noqa: ARG002
        """See `Processor`."""
        return DeviceSequence(cast("Workspace", memory))

    def seats(self, config: DecoderConfig, pool: BlockPool, number: int) -> DeviceSeats:  # noqa: ARG002 - none needed
        """See `Processor`."""
        return DeviceSeats()

    def step(self, decoder: Decoder, seats: Seating, spans: Items[Span], floor_rows: int) -> DeviceStep:  # noqa: ARG002
        """See `Processor`. There is no padding: a row's bits do not depend on how many there are."""
        return DeviceStep(decoder, spans)
