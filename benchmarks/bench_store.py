"""The disk store against the bare disk, against the usual places for values, and against files of tensors.

Buffers are touched before. Nothing global is dropped: a cold read is one whose files alone left the page cache, a
warm one has them in it. Ingest hashes every leaf and is durable when it returns. `--folder` must be on a real disk.
Reads of the store are checked, on as many as four threads; a raw read is not checked, and its claim names its threads.
"""

import shutil
from collections.abc import Callable, Sequence
from mmap import mmap
from os import urandom
from pathlib import Path

import torch

from cyberkv.cybergraph.cid import Cid, HashName
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.pool import Pool

from . import store_loads
from .common import Claim, best_in_turns_s, best_s, options, report, scratch
from .store_loads import SMOLLM2
from .store_peers import (
    CATALOGUE,
    MIB,
    PIECE_BYTES,
    Leaves,
    forget_pages,
    hash_all,
    read_raw,
    runs,
    warm_pages,
    write_files,
    write_lmdb,
    write_raw,
    write_sqlite,
)

KIB = 1024
FILES_BYTES = 64 * MIB
"""The slowest peers write only so much; rates are compared."""
OPENINGS = 3
MODEL = Cid.of(b"model", "dag-cbor", "sha2-256")


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    total_bytes, repeats = (32 * MIB, 1) if args.quick else (1024 * MIB, 3)
    claims: list[Claim] = []
    figures: dict[str, float] = {}
    with scratch(args.folder) as folder:
        data = memoryview(mmap(-1, total_bytes))
        pool = memoryview(mmap(-1, total_bytes))
        pool[:] = bytes(total_bytes)
        for leaf_kib in (64, 256):
            leaves = make_leaves(data, leaf_kib * KIB, "blake3")
            bench_ingest(folder, data, leaves, repeats, claims, figures)
        bench_restore(folder, data, pool, repeats, claims, figures)
        bench_blocks(folder / "blocks", 4096 if args.quick else 1_000_000, claims, figures)
        bench_conversation(folder, 256 if args.quick else 2048, repeats, claims, figures)
    return report(args, "Disk store", claims, figures)


def make_leaves(data: memoryview, leaf_bytes: int, hash_name: HashName) -> list[tuple[Cid, memoryview]]:
    """Fill `data` with leaves that all differ, and name them."""
    noise = urandom(leaf_bytes - 8)
    leaves = []
    for start in range(0, len(data), leaf_bytes):
        leaf = data[start : start + leaf_bytes]
        leaf[:] = start.to_bytes(8, "little") + noise
        leaves.append((Cid.of(leaf, "raw", hash_name), leaf))
    return leaves


def bench_ingest(
    folder: Path, data: memoryview, leaves: Leaves, repeats: int, claims: list[Claim], figures: dict[str, float]
) -> None:
    kib, gib = len(leaves[0][1]) // KIB, len(data) / (1 << 30)

    def fresh(work: Callable[[Path], None]) -> None:
        work(folder / "peer")
        shutil.rmtree(folder / "peer")

    def ours(path: Path) -> None:
        with DiskStore(path) as store:
            assert store.put_many(leaves) == len(leaves)

    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]

    def raw() -> None:
        write_raw(folder / "raw", pieces, direct=True)
        hash_all(leaves, "blake3")

    few = leaves[: FILES_BYTES // len(leaves[0][1])]
    ours_s, raw_s = best_in_turns_s(lambda: fresh(ours), raw, repeats=repeats)
    sqlite_s = best_s(lambda: fresh(lambda path: write_sqlite(path, leaves)), 1)
    lmdb_s = best_s(lambda: fresh(lambda path: write_lmdb(path, leaves)), 1)
    files_s = best_s(lambda: fresh(lambda path: write_files(path, few)), 1) * len(leaves) / len(few)
    claims += [
        Claim(f"ingest, {kib} KiB leaves, vs raw O_DIRECT + hashing", raw_s / ours_s, 0.7),
        Claim(f"ingest, {kib} KiB leaves, vs a synced file each", files_s / ours_s, 8.0),
        Claim(f"ingest, {kib} KiB leaves, vs SQLite values", sqlite_s / ours_s, 2.0),
        Claim(f"ingest, {kib} KiB leaves, vs LMDB values", lmdb_s / ours_s, 2.0),
    ]
    times = {"ours": ours_s, "raw + hashing": raw_s, "SQLite": sqlite_s, "LMDB": lmdb_s, "a file each": files_s}
    figures |= {f"ingest, {kib} KiB, {name}, s/GiB": seconds / gib for name, seconds in times.items()}


class Restore:
    """A store of 256 KiB leaves, and the rows they are restored into."""

    def __init__(self, path: Path, data: memoryview, pool: memoryview, hash_name: HashName) -> None:
        leaves = make_leaves(data, 256 * KIB, hash_name)
        self.path = path
        self.cids = [cid for cid, _ in leaves]
        self.rows = [pool[start : start + 256 * KIB] for start in range(0, len(pool), 256 * KIB)]
        self.store = DiskStore(path)
        self.store.put_many(leaves, hashed=True)
        self.reads = runs([place for place in self.store.places(self.cids) if place], self.rows)

    def verified(self) -> None:
        self.store.get_into(self.cids, self.rows)

    def raw(self) -> None:
        read_raw(self.path, self.reads, direct=False)

    def raw_direct(self) -> None:
        read_raw(self.path, self.reads, direct=True)

    def raw_alone(self) -> None:
        read_raw(self.path, self.reads, direct=False, threads=1)

    def cold_s(self, work: Callable[[], None]) -> float:
        forget_pages(self.path)
        return best_s(work, 1)

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.path)


def bench_restore(
    folder: Path, data: memoryview, pool: memoryview, repeats: int, claims: list[Claim], figures: dict[str, float]
) -> None:
    gib = len(data) / (1 << 30)
    slow = Restore(folder / "sha2-256", data, pool, "sha2-256")
    warm_pages(slow.path)
    sha_s = best_s(slow.verified, repeats)
    slow.close()
    one = Restore(folder / "blake3", data, pool, "blake3")
    cold = [[one.cold_s(work) for work in (one.verified, one.raw, one.raw_direct)] for _ in range(2 * repeats)]
    cold_s, raw_s, direct_s = map(min, zip(*cold, strict=True))
    assert pool == data
    warm_pages(one.path)
    blake_s, plain_s, parallel_s = best_in_turns_s(one.verified, one.raw_alone, one.raw, repeats=3 * repeats)
    one.close()
    claims += [
        Claim("cold restore, verified, vs the faster 4-thread raw read", min(raw_s, direct_s) / cold_s, 0.8),
        Claim("warm restore, blake3 vs sha2-256", sha_s / blake_s, 2.5),
        Claim("warm restore, verified, 4 threads, vs 1-thread raw read", plain_s / blake_s, 0.6),
    ]
    times = {"cold restore": cold_s, "cold raw read": raw_s, "cold raw read, O_DIRECT": direct_s,
             "warm restore": blake_s, "warm restore, sha2-256": sha_s, "warm raw read, one thread": plain_s,
             "warm raw read, four threads": parallel_s}  # fmt: skip
    figures |= {f"{name}, s/GiB": seconds / gib for name, seconds in times.items()}


def bench_blocks(path: Path, count: int, claims: list[Claim], figures: dict[str, float]) -> None:
    leaves = make_leaves(memoryview(mmap(-1, (count + 2 * OPENINGS) * 16)), 16, "blake3")
    later = leaves[count:]
    del leaves[count:]
    cids = [cid for cid, _ in leaves]
    with DiskStore(path) as store:
        put_s = best_s(lambda: store.put_many(leaves, hashed=True), 1)
        some = cids[:: max(1, count // 4096)]
        cost_s = {"lookup": best_s(lambda: store.places(cids), 3), "has": best_s(lambda: store.missing(cids), 3)}
        one_s = best_s(lambda: [store.has(cid) for cid in some], 3) / len(some)
        used_s = best_s(store.used_bytes, 3)

    def read_one() -> None:
        with DiskStore(path, read_only=True) as store:
            store.get(cids[count // 2])

    def write_one() -> None:
        with DiskStore(path) as store:
            assert store.put(*later.pop())

    def cold_s(work: Callable[[], None]) -> float:
        forget_pages(path)
        forget_pages(path, CATALOGUE)
        return best_s(work, 1)

    for name, seconds in cost_s.items():
        claims.append(Claim(f"{name}, per block", seconds / count * 1e6, 5.0, unit="us", at_most=True))
    figures |= {
        "blocks in the store": float(count),
        "has, one call each, us": one_s * 1e6,
        "ingest of a 16-byte leaf, us": put_s / count * 1e6,
        "used_bytes, us": used_s * 1e6,
    }
    for name, work in {"read": read_one, "write": write_one}.items():
        figures[f"open again and {name} one, ms"] = best_s(work, OPENINGS) * 1e3
        figures[f"open again and {name} one, nothing cached, ms"] = min(cold_s(work) for _ in range(OPENINGS)) * 1e3


def bench_conversation(folder: Path, tokens: int, repeats: int, claims: list[Claim], figures: dict[str, float]) -> None:
    count = tokens // SMOLLM2.block_size
    shared, suffix = count * 7 // 8, count - count * 7 // 8
    pool = Pool(SMOLLM2, count + suffix)
    pool.rows.view(torch.int32).random_()
    first = name_rows(pool, range(count))
    second = first[:shared] + name_rows(pool, range(count, count + suffix), prev=first[shared - 1][-1][0])
    path = folder / "conversation"
    with DiskStore(path) as store:
        assert store.put_many([item for block in first for item in block], hashed=True) == sum(map(len, first))
        before_bytes = store.used_bytes()
        new = store.put_many([item for block in second for item in block], hashed=True)
        new_bytes = store.used_bytes() - before_bytes
    leaves = [item for block in first for item in block[:-1]]
    store_loads.save(folder, pool, count, [cid for cid, _ in leaves])
    warm_pages(path)
    out = Pool(SMOLLM2, count)
    rows = [view for row in range(count) for view in out.leaves(row)]

    def restore() -> None:
        with DiskStore(path, read_only=True) as store:
            store.get_into([cid for cid, _ in leaves], rows)

    restore()
    touched_s = best_s(restore, 3 * repeats)
    assert torch.equal(out.rows.view(torch.int32), pool.rows[:count].view(torch.int32))
    fresh = store_loads.fresh_loads_s(folder, 2 * repeats - 1)
    claims += [
        *(
            Claim(f"{tokens} tokens, new process, vs {kind}", seconds / fresh["store"], 1.0)
            for kind, seconds in fresh.items()
            if kind != "store"
        ),
        Claim("second conversation, blocks written / its own", new / (4 * suffix), 1.0, at_most=True),
        Claim(
            "second conversation, bytes taken / its own", new_bytes / (suffix * SMOLLM2.block_bytes), 1.01, at_most=True
        ),
    ]
    figures |= {f"{kind}, in a new process, s": seconds for kind, seconds in fresh.items()}
    figures["restore into rows touched before (open, read, verify), s"] = touched_s


def name_rows(pool: Pool, rows: Sequence[int], prev: Cid | None = None) -> list[list[tuple[Cid, bytes | memoryview]]]:
    """Make the leaves and the node of each block, the node last."""
    blocks = []
    for row in rows:
        leaves = [(Cid.of(leaf, "raw", "blake3"), leaf) for leaf in pool.leaves(row)]
        tokens = tuple(range(row * SMOLLM2.block_size, (row + 1) * SMOLLM2.block_size))
        node = Block(model=MODEL, prev=prev, tokens=tokens, kv=tuple(cid for cid, _ in leaves)).encode()
        prev = Cid.of(node, "dag-cbor", "sha2-256")
        blocks.append([*leaves, (prev, node)])
    return blocks


if __name__ == "__main__":
    raise SystemExit(main())
