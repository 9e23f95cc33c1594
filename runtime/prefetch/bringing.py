"""How a conversation's leaves are brought, in a thread of their own, into rows and the store.

Each leaf is verified by its CID, copied into its pool row, and stored as by a fetch: leaves before their block, blocks
before the root, the index last. Who waits for it, and gives up, is `Arrival`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Condition
from typing import Final

from ...cybergraph.chain import Step, block_cids, walk
from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt, CyberKVError, NotFound, PeerError, TierFull
from ...cybergraph.index import UNKNOWN_DOMAIN, Index, IndexEntry, signed_domain
from ...cybergraph.nodes import Conversation
from ...cybergraph.peers import Peer
from ...cybergraph.prefix import PrefixKey, prefix_key
from ...cybergraph.store.base import Store
from ...cybergraph.transfer.fetch import nothing
from ...cybergraph.transfer.head import Begin, Head, Shared
from ...cybergraph.transfer.intake import Desk, Few
from ...cybergraph.transfer.landing import Landing
from ...cybergraph.transfer.progress import SILENT, Progress
from ...cybergraph.transfer.shape import check_leaf
from ...cybergraph.transfer.sources import Sources
from ...cybergraph.verdict import Tier
from ..pool import on_host
from ..rows import ARCHIVED
from ..sequence import Sequence as Cache
from ..tiers import Residency, drop_failed
from .intake import Leaves
from .order import NeedOrder, need_order

BUDGET_BYTES: Final = 64 << 20


class Bringing:
    """The part of an arrival that brings and stores. Fields under `_changed` are shared with who waits."""

    def __init__(
        self,
        store: Store,
        index: Index,
        root_cid: Cid,
        peers: Sequence[Peer],
        *,
        signer: bytes | None = None,
        progress: Progress = SILENT,
        free_bytes: int | None = None,
    ) -> None:
        """Prepare, without asking anybody. `signer`, by Ed25519 key, signed the root: the index notes it.

        `free_bytes` is what the store may grow by.
        """
        self.root_cid, self._store, self._index = root_cid, store, index
        self._domain = UNKNOWN_DOMAIN if signer is None else signed_domain(signer)
        self._stack = ExitStack()
        self._sources = Sources(peers, BUDGET_BYTES)
        writer = self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="landing"))
        self.desk = Desk(store)
        """Root and page table, once they are here, over the store."""
        self._landing = Landing(store, progress, BUDGET_BYTES, None, writer)
        shared = Shared(store, index, self._sources, self.desk, None, free_bytes)
        self._head = Head(root_cid, self._domain, shared, self._landing)
        self._free_bytes = free_bytes
        self.steps: list[Step] = []
        """The blocks, checked in their places."""
        self.failed: tuple[int, CyberKVError] | None = None
        """The first block that will not come whole, and why."""
        self.is_whole = False
        """The conversation is in the store with its root, as after a fetch."""
        self._changed = Condition()
        self._tail = Few()
        self._error: BaseException | None = None
        self._ended = self._stored = self._closing = self._read_here = False

    def open(self, begin: Begin = nothing) -> Conversation:
        """Bring root, model, page table and block nodes. `begin` hears of the root before anything else moves.

        Raises as `cybergraph.transfer.fetch`.
        """
        roots: list[Conversation] = []

        def begun(cid: Cid, root: Conversation) -> None:
            begin(cid, root)
            roots.append(root)

        self._shape = self._head.open(None, begun)
        self.root = root = roots[0]
        self._bring_nodes(root.segments)
        self._bring_nodes(list(block_cids(self.desk, root)))
        self.steps = list(walk(self.desk, root))
        for step in self.steps:
            self._shape.leaves_of(step.cid, step.block)  # as many as the model has groups
        return root

    def _bring_nodes(self, cids: Sequence[Cid]) -> None:
        lacking: list[Cid] = []
        for cid in dict.fromkeys(cids):
            try:
                self.desk.get(cid)
            except (NotFound, Corrupt) as error:
                drop_failed(self._store, 0, error)
                lacking.append(cid)
        nodes = Few(lacking)
        self._sources.bring(nodes)
        if not nodes.done:
            raise self._sources.verdict(nodes.awaited())
        self.desk.put_many(nodes.came.items(), hashed=True)

    def _lay_out(self, sequence: Cache, first: int, residency: Residency) -> None:
        """Give each leaf of blocks `first` on its place in rows of `sequence`.

        Raises `TierFull`, before anything moves, where pool or store have no room for it.
        """
        self._sequence, self._first, self._residency = sequence, first, residency
        pool = on_host(sequence.pool, "computing while blocks come from peers")
        blocks = [step.block for step in self.steps]
        size, self._kinds = pool.geometry.block_size, sequence.config.layers
        self._missing = self._landing.absent(list(dict.fromkeys(leaf for block in blocks for leaf in block.kv)))
        needed_bytes = sum(
            size_bytes
            for step in self.steps
            for leaf, size_bytes in self._shape.leaves_of(step.cid, step.block)
            if leaf in self._missing
        )
        if self._free_bytes is not None and needed_bytes > self._free_bytes:
            raise TierFull(
                f"{self.root_cid} needs {needed_bytes} bytes more, and {self._free_bytes} are free",
                hint="free some space or use another --home; what is here already is kept",
                cid=str(self.root_cid), needed_bytes=needed_bytes, free_bytes=self._free_bytes,
            )  # fmt: skip
        sequence.table += [ARCHIVED] * max(0, sequence.unread_blocks(len(blocks)) - len(sequence.table))
        sequence.extend_table(len(blocks) * size)
        sequence.reserve(len(blocks) * size)
        # Counted once more: rows that the sequence gives back meanwhile must not be anybody else's yet.
        self._rows = [pool.retain(row) for row in sequence.table]
        self._leaves = Leaves(
            blocks, self._rows, self._order(len(blocks)), pool, self._landing.add, self._lose, self._changed
        )

    def _order(self, blocks: int) -> NeedOrder:
        geometry = self._sequence.pool.geometry
        return need_order(
            self._kinds, blocks, block_size=geometry.block_size, layers_per_leaf=geometry.layers_per_leaf,
            first=min(self._first, blocks),
        )  # fmt: skip

    def _bring(self) -> None:
        try:
            self._from_store()
            while not self._leaves.done:
                self._ask()
            self._store_rest()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = self._read_here = True
                self._changed.notify_all()

    def _from_store(self) -> None:
        """Read what is here into its rows. What turns out to be damaged is asked for."""
        here = {leaf for step in self.steps for leaf in step.block.kv} - self._missing
        for cids, views in self._leaves.present(here):
            pairs = list(zip(cids, views, strict=True))
            while pairs:
                try:
                    self._store.get_into([cid for cid, _ in pairs], [view for _, view in pairs])
                    break
                except (NotFound, Corrupt) as error:
                    drop_failed(self._store, 0, error)
                    bad = str(error.data.get("cid"))
                    if all(str(cid) != bad for cid, _ in pairs):
                        raise
                    pairs = [pair for pair in pairs if str(pair[0]) != bad]
            for cid, view in dict(pairs).items():
                if self._leaves.examine(cid, view):
                    self._leaves.arrive(cid)
        with self._changed:
            self._read_here = True
            self._changed.notify_all()

    def _ask(self) -> None:
        leaves, asked = self._leaves, self._leaves.awaited()
        try:
            self._sources.bring(leaves)
        except TierFull:
            raise
        except CyberKVError as error:  # sound bytes that do not fit the model
            self._lose(leaves.first_lacking(), error)
            return
        if not leaves.done:
            any_left = any(report.state == "ok" for report in self._sources.reports())
            asked = leaves.awaited() or asked
            self._lose(leaves.first_lacking(asked if any_left else None), self._sources.verdict(asked))

    def _lose(self, block: int, error: CyberKVError) -> None:
        with self._changed:
            if self._closing:
                return
            if self.failed is None or block < self.failed[0]:
                self.failed = block, error
            self._leaves.cut(block, self._order(block))

    def _store_rest(self) -> None:
        """Store block nodes behind their leaves, then the root behind all, and index what is whole."""
        landing, whole = self._landing, min(self._leaves.limit, len(self.steps))
        if self._closing:
            whole = self._leaves.first_lacking()
        landing.close()
        for step in self.steps[:whole]:
            if landing.size_bytes(step.cid) is None:
                landing.add(step.cid, self.desk.get(step.cid))
        landing.close()
        if self._closing:
            return
        self._name_rows(whole)
        if self.root.approx is None:
            self._index.add_blocks(self._entries(whole))
        with self._changed:
            self._stored = True
            self._changed.notify_all()
        if whole == len(self.steps):
            with suppress(NotFound, Corrupt, PeerError):  # its tail is computed anew in any case
                self._finish_root()
        landing.close()

    def _finish_root(self) -> None:
        """Bring the tail's rows, and let what a fetch ends with happen: nothing but the root is missing then."""
        sizes = dict(self._shape.tail_leaves)
        with self._changed:
            self._tail = Few(leaf for leaf in sizes if self._landing.size_bytes(leaf) is None)
            self._tail.stopped = self._closing
        self._sources.bring(self._tail)
        for leaf, data in self._tail.came.items():
            check_leaf(leaf, sizes[leaf], len(data))
            self._landing.add(leaf, data)
        if self._tail.done and not self._tail.stopped:
            for _ in self._head.bring():
                pass
            self.is_whole = True

    def _entries(self, blocks: int) -> list[IndexEntry]:
        entries: list[IndexEntry] = []
        parent: PrefixKey | None = None
        for step in self.steps[:blocks]:
            parent = prefix_key(step.block.model, parent, step.block.tokens)
            entries.append(IndexEntry(parent, step.cid, step.block.prev, step.block.model, self._domain))
        return entries

    def _name_rows(self, blocks: int) -> None:
        """Let other conversations find the blocks in the pool, and count them as moved."""
        residency, geometry = self._residency, self._sequence.pool.geometry
        with self._changed:
            for step, row in list(zip(self.steps, self._rows, strict=False))[self._first : blocks]:
                if row != ARCHIVED and residency.shelf.name(step.cid, step.block, row, stored=True):
                    residency.log.add(step.cid, self.tier_of(step), Tier.L0, geometry.block_bytes)

    def tier_of(self, step: Step) -> Tier:
        """Say where a block came from: a peer if any of its leaves did."""
        return Tier.L2 if self._missing.isdisjoint(step.block.kv) else Tier.L3
