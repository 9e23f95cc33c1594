"""A home of synthetic blocks with a pool and a residency over it, and a peer of which it is known what it was asked."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import BlockNotFound
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import MemoryStore, Store
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.pool import BlockPool, Pool
from cyberkv.runtime.tiers import Residency
from tests.contracts.synthetic import BLOCK_SIZE, make_blocks, make_model

GEOMETRY = Geometry(4, 1, 8, block_size=BLOCK_SIZE, layers_per_leaf=2, dtype="f32")
BLOCK_BYTES = GEOMETRY.block_bytes
MODEL = make_model().cid()


class Remote:
    """A peer: the blocks of a store, and a list of what was asked."""

    name = "remote"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asked: list[Cid] = []
        self.before: Callable[[], None] = lambda: None
        """Called before each block that is given."""

    def get_many(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, Buffer]]:
        self.asked += cids
        for cid in cids:
            self.before()
            if self.store.has(cid):
                yield cid, self.store.get(cid)
        if absent := self.store.missing(cids):
            raise BlockNotFound("absent", cids=[str(cid) for cid in absent])


def host_pool(rows: int, host_bytes: int) -> BlockPool:
    return Pool(GEOMETRY, rows)


class Home:
    """Blocks in a store, in order; what each holds is known."""

    pools: ClassVar[Callable[[int, int], BlockPool]] = staticmethod(host_pool)
    """Makes a pool of so many rows, and so many bytes of host memory for what leaves it."""

    def __init__(self, blocks: int, *, flavour: str = "", store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.tokens = list(range(blocks * BLOCK_SIZE))
        self.blocks = make_blocks(self.store, MODEL, self.tokens, flavour=flavour)
        self.nodes = {cid: Block.decode(self.store.get(cid)) for cid in self.blocks}
        self.bytes = {cid: b"".join(self.store.get(leaf) for leaf in node.kv) for cid, node in self.nodes.items()}

    def residency(self, rows: int, store: Store | None = None, **options: object) -> Residency:
        pool = self.pools(rows, options.get("host_bytes", 0))  # type: ignore[arg-type]
        return Residency(pool, store or self.store, MODEL, **options)  # type: ignore[arg-type]

    def prev(self, at: int) -> Cid | None:
        return self.blocks[at - 1] if at else None

    def drop(self, cid: Cid) -> None:
        """Take a block out of the store, its leaves too."""
        self.store.delete_many([cid, *self.nodes[cid].kv])


def content(pool: BlockPool, row: int) -> bytes:
    return b"".join(pool.read([row])[0])


def put(pool: BlockPool, row: int, data: bytes) -> None:
    """Have a row in use hold a block's bytes."""
    pool.fill_tail(row, BLOCK_SIZE, [data[start:end] for start, end in GEOMETRY.leaf_spans])
