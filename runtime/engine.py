"""One loaded model with a store to record into: what live conversations share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from ..cybergraph.cid import Cid
from ..cybergraph.errors import CyberKVError, UnsafeNumerics
from ..cybergraph.index import Index
from ..cybergraph.nodes import Model
from ..cybergraph.store.base import Store
from .attention.panels import FLOOR_ROWS
from .canonical import Domain, probe
from .geometry import Geometry
from .models.config import DecoderConfig
from .models.decoder import Decoder
from .models.registry import LoadedModel
from .pace import Pace
from .pool import BlockPool, on_host
from .quant import DTYPES
from .rope import Rotary
from .sequence import Sequence as Cache
from .steps.processor import HostProcessor, Processor, WorkingMemory
from .tiers import Residency, Source


@dataclass(slots=True)
class Engine:
    """Decoder, identity, pool, store, index and numeric domain."""

    decoder: Decoder
    processor: Processor
    model: Model
    model_cid: Cid
    store: Store
    index: Index
    pool: BlockPool
    domain: Domain
    pace: Pace = field(default_factory=Pace)
    """Speeds that decide whether known blocks are loaded or computed."""
    host_bytes: int = 0
    """Budget of host memory for blocks that leave the pool. None by default: the host's pool is host memory itself."""
    sources: Sequence[Source] = ()
    """Peers that are asked for blocks that the store lacks, where `may_ask` allows it."""
    may_ask: Callable[[Cid], bool] = lambda _: False
    """Whether the name of a block may be told to `sources`."""
    geometry: Geometry = field(init=False)
    memory: WorkingMemory = field(init=False)
    _residency: Residency | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.geometry = self.pool.geometry
        self.memory = self.processor.memory(self.config, self.pool)

    @property
    def config(self) -> DecoderConfig:
        """Shape of the decoder."""
        return self.decoder.config

    @property
    def rotary(self) -> Rotary:
        """Rotation on the host. Raises `UnsupportedModel` where the engine computes on a device."""
        on_host(self.pool, "rotation on the host")
        return cast("HostProcessor", self.processor).rotary

    @property
    def residency(self) -> Residency:
        """Where this model's blocks are. Over another pool or store it is another one, which knows of none yet."""
        known = self._residency
        if known is None or known.pool is not self.pool or known.store is not self.store:
            known = self._residency = Residency(
                self.pool, self.store, self.model_cid,
                host_bytes=self.host_bytes, cached_bytes=self.processor.cached_bytes, sources=self.sources,
                may_ask=self.may_ask, own=self.index.computed_here,
            )  # fmt: skip
        return known

    def new_sequence(self) -> Cache:
        """Start an empty cache over the shared pool."""
        return self.processor.sequence(self.config, self.pool, self.memory)


def build_engine(
    loaded: LoadedModel,
    store: Store,
    index: Index,
    *,
    capacity_tokens: int | None = None,
    domain: Domain | None = None,
    processor: Processor | None = None,
) -> Engine:
    """Prepare a loaded model to record into a store.

    `capacity_tokens` bounds the pool (by default two conversations of the model's full length; memory is taken only as
    it is used). `processor` is the one for which the model was loaded, by default the host. Runs the known-answer test
    unless a `domain` is given. Effects: the model node is put into the store. Raises `TierFull`.
    """
    place: Processor = processor or _host(loaded)
    store.put_node(loaded.identity)
    domain = domain or _probe(loaded, place)
    pool = place.engine_pool(loaded.geometry, capacity_tokens or 2 * loaded.config.max_positions)
    return Engine(
        loaded.decoder, place, loaded.identity, loaded.cid, store, index, pool, domain, host_bytes=place.host_bytes
    )


def known_answer(loaded: LoadedModel, processor: Processor | None = None) -> Domain:
    """Run the known-answer test of a loaded model, without a store; effects as in `probe`."""
    return _probe(loaded, processor or _host(loaded))


def _probe(loaded: LoadedModel, processor: Processor) -> Domain:
    try:
        return probe(loaded.decoder, processor, loaded.geometry)
    except CyberKVError:
        raise
    except Exception as error:
        if not processor.kind:
            raise
        # No compiler, a driver that refuses a kernel, a device that failed: each names itself in its own way.
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UnsafeNumerics(
            f"the known-answer test fails on the device: {reason}",
            hint="--device cpu computes on the processor", reason=reason, device=processor.kind,
        ) from error  # fmt: skip


def _host(loaded: LoadedModel) -> HostProcessor:
    config, dtype = loaded.config, DTYPES[loaded.geometry.dtype]
    positions = config.max_positions + FLOOR_ROWS  # padding rows of the last step stand beyond the model's own
    scaling, interleaved = dict(config.rope_scaling), config.is_interleaved
    return HostProcessor(
        Rotary(config.rotary_dims, config.rope_base, scaling, positions, dtype, interleaved=interleaved)
    )
