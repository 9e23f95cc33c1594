"""A home of synthetic blocks with a pool and a residency over it, and a peer of which it is known what it was asked."""

from collections.abc import Callable, Iterator, Sequence

from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import BlockNotFound
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import MemoryStore, Store
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.pool import Pool
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


class Home:
    """Blocks in a store, in order; what each holds is known."""

    def __init__(self, blocks: int, *, flavour: str = "") -> None:
        self.store = MemoryStore()
        self.tokens = list(range(blocks * BLOCK_SIZE))
        self.blocks = make_blocks(self.store, MODEL, self.tokens, flavour=flavour)
        self.nodes = {cid: Block.decode(self.store.get(cid)) for cid in self.blocks}
        self.bytes = {cid: b"".join(self.store.get(leaf) for leaf in node.kv) for cid, node in self.nodes.items()}

    def residency(self, rows: int, store: Store | None = None, **options: object) -> Residency:
        return Residency(Pool(GEOMETRY, rows), store or self.store, MODEL, **options)  # type: ignore[arg-type]

    def prev(self, at: int) -> Cid | None:
        return self.blocks[at - 1] if at else None

    def drop(self, cid: Cid) -> None:
        """Take a block out of the store, its leaves too."""
        self.store.delete_many([cid, *self.nodes[cid].kv])


def content(pool: Pool, row: int) -> bytes:
    return pool.rows[row].numpy().tobytes()
