"""Keeping a store under its cap: noting what was used, and evicting what nobody needs.

Half of the leaves belong to a conversation in use, half to one that was forgotten and makes room. Finding out what is
in use is a walk over all nodes, done once for all that goes in one run of the program, and measured on its own. The
time to evict is that of the least disturbed step: choosing, deleting, and the durable commit. The peer is a table in
SQLite, with the last use as an indexed column, that deletes in steps of the same size.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from cyberkv.cybergraph.chain import build_root
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.clock import Clock
from cyberkv.cybergraph.keeping.room import Room
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.store.catalog import Place

from .common import Claim, best_s, options, report, scratch
from .made_up import LAYER_BYTES, model

LEAF_BYTES = 4096
"""Small, so that many fit: nothing here depends on what a leaf holds."""
LEAVES_PER_BLOCK = 4
BLOCK_SIZE = 16
READ_LEAVES = 512
"""Leaves of one read, such as those of 2,048 tokens at four a block."""
TOUCH_BAR_US, EVICT_BAR_US = 1.0, 10.0


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    half = 2048 if args.quick else 65_536
    with scratch(args.folder) as folder:
        with DiskStore(folder / "store") as store, Index(folder / "index") as index:
            index.set_head("kept", _record(store, "kept", half), "")
            _record(store, "forgotten", half)
            places = [place for _, place in store.leaves()]
            clock = Clock(None)
            touch_s = best_s(lambda: _touch(clock, places), 5)
            with closing(Room(store, lambda: index)) as room:
                first_s, step = _evict(store, room)
                evict_us = min(each_s / leaves for each_s, leaves in _evict_all(store, room, half)) * 1e6
                if room.evicted_leaves != half:
                    raise SystemExit(f"evicted {room.evicted_leaves} of {half} leaves")
        keys = [f"{each}".encode() for each in places]
        sqlite_touch_s, sqlite_evict_s = _sqlite(folder / "lru.sqlite", keys, step)
    claims = [
        Claim("LRU touch, a block", touch_s / len(places) * 1e6, TOUCH_BAR_US, unit="us", at_most=True),
        Claim("evict, a block", evict_us, EVICT_BAR_US, unit="us", at_most=True),
    ]
    figures = {
        "leaves in the store": 2.0 * half,
        "touch by SQLite, us a block": sqlite_touch_s / len(places) * 1e6,
        "evict by SQLite, us a block": sqlite_evict_s / step * 1e6,
        "leaves in a step": float(step),
        "walk and first step, us a leaf of the store": first_s / len(places) * 1e6,
    }
    return report(args, "Room under a cap", claims, figures)


def _record(store: DiskStore, seed: str, leaves: int) -> Cid:
    """Store a conversation with so many leaves."""
    model_cid = store.put_node(model(LAYER_BYTES, "blake3"))
    chain: list[Cid] = []
    pending: list[tuple[Cid, Buffer]] = []
    for at in range(leaves // LEAVES_PER_BLOCK):
        rows = [f"{seed}/{at}/{group}".encode().ljust(LEAF_BYTES) for group in range(LEAVES_PER_BLOCK)]
        kv = tuple(Cid.of(row, "raw", "blake3") for row in rows)
        node = Block(model_cid, chain[-1] if chain else None, tuple(range(BLOCK_SIZE)), kv).encode()
        chain.append(Cid.of(node, "dag-cbor", "sha2-256"))
        pending += [*zip(kv, rows, strict=True), (chain[-1], node)]
    store.put_many(pending, hashed=True)
    return build_root(
        store, model=model_cid, block_size=BLOCK_SIZE, blocks=chain, tail=EMPTY_TAIL, title=seed, payload_bytes=0
    )


def _touch(clock: Clock, places: Sequence[Place]) -> None:
    for start in range(0, len(places), READ_LEAVES):
        clock.touch(places[start : start + READ_LEAVES])


def _evict(store: DiskStore, room: Room) -> tuple[float, int]:
    """Make room for one leaf, and give the time and how many went."""
    before, cap_bytes = room.evicted_leaves, store.used_bytes() - LEAF_BYTES
    step_s = best_s(lambda: room.fit(cap_bytes), 1)
    return step_s, room.evicted_leaves - before


def _evict_all(store: DiskStore, room: Room, leaves: int) -> Iterator[tuple[float, int]]:
    while room.evicted_leaves < leaves:
        yield _evict(store, room)


def _sqlite(path: Path, keys: list[bytes], step: int) -> tuple[float, float]:
    """Time to touch every row, and to delete a step of those that were not used for longest."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE leaves (cid BLOB PRIMARY KEY, used INTEGER) WITHOUT ROWID")
        database.execute("CREATE INDEX by_use ON leaves (used)")
        database.executemany("INSERT INTO leaves VALUES (?, 0)", ((key,) for key in keys))
        database.commit()

        def touch() -> None:
            for start in range(0, len(keys), READ_LEAVES):
                rows = [(start, key) for key in keys[start : start + READ_LEAVES]]
                database.executemany("UPDATE leaves SET used = ? WHERE cid = ?", rows)
            database.commit()

        def evict() -> None:
            oldest = "SELECT cid FROM leaves ORDER BY used LIMIT ?"
            database.execute(f"DELETE FROM leaves WHERE cid IN ({oldest})", (step,))  # noqa: S608
            database.commit()

        return best_s(touch, 1), best_s(evict, len(keys) // 2 // step)


if __name__ == "__main__":
    raise SystemExit(main())
