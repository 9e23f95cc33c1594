"""Sealing: canonical rows become leaves, leaves become a block node, and only then can anything find them."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..cybergraph.cid import Cid
from ..cybergraph.errors import UnsafeNumerics
from ..cybergraph.index import Index, IndexEntry
from ..cybergraph.nodes import Block, Model
from ..cybergraph.prefix import PrefixKey
from ..cybergraph.store.base import Store
from .finite import first_wrong
from .geometry import Geometry
from .pool import BlockPool


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A full block of canonical rows that has no name yet."""

    row: int
    """Pool row."""
    tokens: tuple[int, ...]
    prefix: PrefixKey


@dataclass(frozen=True, slots=True)
class Sealed:
    """Consecutive blocks with their names, not stored yet."""

    cids: list[Cid]
    items: list[tuple[Cid, bytes | memoryview]]
    """Leaves and nodes; leaves are what `BlockPool.read` gave."""
    entries: list[IndexEntry]


def name_blocks(
    pool: BlockPool, model: Model, model_cid: Cid, prev: Cid | None, blocks: list[Unsealed], domain: str
) -> Sealed:
    """Hash consecutive blocks that follow `prev`.

    Raises `TierFull` where their bytes find no room on the host, `UnsafeNumerics` for numbers that are not finite.
    """
    sealed = Sealed([], [], [])
    for block, views in zip(blocks, pool.read([block.row for block in blocks]), strict=True):
        _require_finite(pool.geometry, views)
        leaves = [(Cid.of(leaf, "raw", model.leaf_hash), leaf) for leaf in views]
        node = Block(model=model_cid, prev=prev, tokens=block.tokens, kv=tuple(cid for cid, _ in leaves))
        data = node.encode()
        cid = Cid.of(data, "dag-cbor", "sha2-256")
        sealed.items.extend([*leaves, (cid, data)])
        sealed.entries.append(IndexEntry(prefix=block.prefix, block=cid, prev=prev, model=model_cid, domain=domain))
        sealed.cids.append(cid)
        prev = cid
    return sealed


def _require_finite(geometry: Geometry, leaves: Sequence[memoryview]) -> None:
    for group, leaf in enumerate(leaves):
        if (wrong := first_wrong(geometry, group, leaf)) is not None:
            raise UnsafeNumerics(
                f"{wrong}: nothing of that can be recorded",
                hint=f"the model may overflow in {geometry.dtype}; add it with another --dtype, such as f32",
                field=wrong.field, expected="finite", got=wrong.number, layer=wrong.layer,
            )  # fmt: skip


def store_blocks(store: Store, index: Index | None, sealed: Sealed) -> int:
    """Store named blocks durably, then index them. A crash between the two costs a later lookup a miss.

    Without an index they are only stored: approximate blocks must not be found by their inputs. Returns how many of the
    blocks were not here before.

    Raises `TierFull`.
    """
    new = sum(not store.has(cid) for cid in sealed.cids)
    store.put_many(sealed.items, hashed=True)
    if index is not None:
        index.add_blocks(sealed.entries)
    return new


class Sealer:
    """Stores named blocks in a thread of its own, so that writing overlaps with computing the next chunk.

    At most one batch waits; an error of a batch comes out at the next `store` or at `close`, and later batches are
    not written, so what is stored is always a prefix.
    """

    def __init__(self, store: Store, index: Index | None) -> None:
        self._store, self._index = store, index
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sealer")
        self._pending: Future[None] | None = None
        self.stored_blocks = 0
        """Blocks stored and indexed so far."""
        self.new_blocks = 0
        """Those among them that were not here before."""

    def store(self, sealed: Sealed) -> None:
        """Hand over a batch; waits for the one before it. Raises what that one raised."""
        self.wait()
        self._pending = self._thread.submit(self._write, sealed)

    def _write(self, sealed: Sealed) -> None:
        self.new_blocks += store_blocks(self._store, self._index, sealed)
        self.stored_blocks += len(sealed.cids)

    def wait(self) -> None:
        """Wait until everything handed over is stored. Raises what the last batch raised, once."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        """Wait and end the thread. Raises as `wait`."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
