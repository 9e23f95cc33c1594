"""What computes: the host, or a device. Whatever depends on where rows of the pool lie comes from here."""

from collections.abc import Sequence as Items
from typing import Final, Protocol, cast

from torch import Tensor

from ..geometry import Geometry
from ..hot import HotMemory, limit_bytes
from ..models.config import DecoderConfig
from ..models.decoder import Decoder
from ..pool import BlockPool, Pool, on_host
from ..rope import Rotary
from ..rotated import RotatedSequence
from ..sequence import Sequence
from ..tiers.residency import CACHED_BYTES
from .seats import Seats
from .step import Span, Step


class WorkingMemory(Protocol):
    """What sequences take beside their rows of the pool."""

    @property
    def left_bytes(self) -> int:
        """What sequences may still take."""

    def copy_bytes(self, length_tokens: int) -> int:
        """Say what a sequence of this length takes."""


class Seating(Protocol):
    """Places in steps for conversations that are decoded."""

    def take(self, sequence: Sequence, length: int) -> None:
        """Make sure that a sequence of `length` positions has a seat. Raises `TierFull`."""

    def leave(self, sequence: Sequence, length: int | None) -> None:
        """Free the seat of a sequence of `length` positions, if it has one; None where it is dropped."""


class SharedStep(Protocol):
    """A forward over spans of several conversations."""

    def run(self) -> list[Tensor]:
        """Compute. Returns hidden states for each span, prompts first. Shapes: [tokens, hidden_size] each."""

    def settle(self, span: Span, rows: range) -> None:
        """Keep rows of a seated span, by their number in it; others leave no trace in what is kept."""


class Processor(Protocol):
    """Where an engine computes."""

    @property
    def kind(self) -> str:
        """In the names of domains: nothing for the host, else what devices are told apart by."""

    @property
    def is_threaded(self) -> bool:
        """Whether bytes may depend on the number of the host's threads."""

    @property
    def is_single_canonical(self) -> bool:
        """Whether a row alone goes the way of several, so that it may have their bytes."""

    @property
    def host_bytes(self) -> int:
        """Host memory for blocks that leave the pool."""

    @property
    def cached_bytes(self) -> int:
        """Rows of the pool that are kept without a user, at most."""

    def pool(self, geometry: Geometry, capacity_blocks: int) -> BlockPool:
        """Make a pool of so many blocks. Raises `TierFull`."""

    def engine_pool(self, geometry: Geometry, capacity_tokens: int) -> BlockPool:
        """Make the pool of an engine, for at least so many tokens where memory has to be bounded by them."""

    def memory(self, config: DecoderConfig, pool: BlockPool) -> WorkingMemory:
        """Give what the sequences over one pool share."""

    def sequence(self, config: DecoderConfig, pool: BlockPool, memory: WorkingMemory) -> Sequence:
        """Start an empty sequence."""

    def seats(self, config: DecoderConfig, pool: BlockPool, number: int) -> Seating:
        """Make seats for so many conversations."""

    def step(self, decoder: Decoder, seats: Seating, spans: Items[Span], floor_rows: int) -> SharedStep:
        """Prepare a step of at least `floor_rows` rows."""


class HostProcessor:
    """See `Processor`."""

    kind: Final = ""
    is_threaded: Final = True
    is_single_canonical: Final = True
    host_bytes: Final = 0
    """None: the pool is host memory itself."""
    cached_bytes: Final = CACHED_BYTES

    def __init__(self, rotary: Rotary) -> None:
        self.rotary = rotary

    def pool(self, geometry: Geometry, capacity_blocks: int) -> Pool:
        """See `Processor`."""
        return Pool(geometry, capacity_blocks)

    def engine_pool(self, geometry: Geometry, capacity_tokens: int) -> Pool:
        """See `Processor`. Memory is taken only as it is used."""
        return Pool(geometry, -(-capacity_tokens // geometry.block_size) + 2)

    def memory(self, config: DecoderConfig, pool: BlockPool) -> HotMemory:
        """See `Processor`."""
        pool_tokens = pool.capacity_blocks * pool.geometry.block_size
        return HotMemory(config, pool.packing.dtype, limit_bytes(config, pool.packing.dtype, pool_tokens))

    def sequence(self, config: DecoderConfig, pool: BlockPool, memory: WorkingMemory) -> RotatedSequence:
        """See `Processor`. Raises `UnsupportedModel` over a pool on a device."""
        pool = on_host(pool, "a sequence with rotated copies")
        return RotatedSequence(config, self.rotary, pool, cast("HotMemory", memory))

    def seats(self, config: DecoderConfig, pool: BlockPool, number: int) -> Seats:
        """See `Processor`."""
        return Seats(config, pool.packing.dtype, number)

    def step(self, decoder: Decoder, seats: Seating, spans: Items[Span], floor_rows: int) -> Step:
        """See `Processor`."""
        return Step(decoder, cast("Seats", seats), spans, floor_rows)
