"""Finding a prefix of 500 blocks among many: the index against a dictionary in memory and against SQLite.

Each peer follows the same chain: one lookup per block, each answer checked to continue the one before.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.prefix import PrefixKey, prefix_keys

from .common import Claim, best_s, options, report, scratch

CHAIN_BLOCKS = 500
BLOCK_SIZE = 16
BAR_MS = 5.0
MODEL = Cid.of(b"model", "dag-cbor", "sha2-256")


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    chains, repeats = (4, 3) if args.quick else (200, 30)
    rows = [row for number in range(chains) for row in _chain(number)]
    asked = rows[len(rows) // 2 // CHAIN_BLOCKS * CHAIN_BLOCKS :][:CHAIN_BLOCKS]
    keys, expected = [row.prefix for row in asked], [row.block for row in asked]
    tokens = [number for row in range(CHAIN_BLOCKS) for number in range(row, row + BLOCK_SIZE)]
    with scratch(args.folder) as folder:
        with Index(folder / "index") as index:
            add_s = best_s(lambda: index.add_blocks(rows), 1)
            index_s = best_s(lambda: _expect(index.lookup_chain(keys, "own"), expected), repeats)
            reads = index.reads // repeats
        plain = {row.prefix: (row.block, row.prev) for row in rows}
        dict_s = best_s(lambda: _expect(_follow_dict(plain, keys), expected), repeats)
        database = _fill_sqlite(folder / "index.sqlite", rows)
        sqlite_s = best_s(lambda: _expect(_follow_sqlite(database, keys), expected), repeats)
        database.close()
        keys_s = best_s(lambda: list(prefix_keys(MODEL, tokens, BLOCK_SIZE)), repeats)
    claims = [
        Claim(f"lookup of a {CHAIN_BLOCKS}-block prefix", index_s * 1e3, BAR_MS, unit="ms", at_most=True),
        Claim("faster than SQLite by", sqlite_s / index_s, 1.0),
    ]
    figures = {
        "entries in the index": float(len(rows)),
        "index, ms": index_s * 1e3,
        "SQLite, ms": sqlite_s * 1e3,
        "dictionary in memory, ms": dict_s * 1e3,
        "index against dictionary, times as long": index_s / dict_s,
        "table reads per block": reads / CHAIN_BLOCKS,
        "hashing the tokens into prefix keys, ms": keys_s * 1e3,
        "adding one block, us": add_s / len(rows) * 1e6,
    }
    return report(args, "Index lookup", claims, figures)


def _chain(number: int) -> Iterator[IndexEntry]:
    prev: Cid | None = None
    for position in range(CHAIN_BLOCKS):
        name = f"{number}/{position}".encode()
        block = Cid.of(name, "dag-cbor", "sha2-256")
        yield IndexEntry(PrefixKey(hashlib.sha256(b"key" + name).digest()), block, prev, MODEL, "own")
        prev = block


def _follow_dict(plain: dict[PrefixKey, tuple[Cid, Cid | None]], keys: list[PrefixKey]) -> list[Cid]:
    chain: list[Cid] = []
    before: Cid | None = None
    for key in keys:
        block, prev = plain[key]
        if prev != before:
            break
        chain.append(block)
        before = block
    return chain


def _fill_sqlite(path: Path, rows: list[IndexEntry]) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(
        "CREATE TABLE found (prefix BLOB, block BLOB, prev BLOB, domain TEXT, "
        "PRIMARY KEY (prefix, block)) WITHOUT ROWID"
    )
    values = ((row.prefix, row.block, row.prev, row.domain) for row in rows)
    database.executemany("INSERT INTO found VALUES (?, ?, ?, ?)", values)
    database.commit()
    return database


def _follow_sqlite(database: sqlite3.Connection, keys: list[PrefixKey]) -> list[Cid]:
    chain: list[Cid] = []
    before: bytes | None = None
    for key in keys:
        block, prev = database.execute("SELECT block, prev FROM found WHERE prefix = ?", (key,)).fetchone()
        if prev != before:
            break
        chain.append(Cid(block))
        before = block
    return chain


def _expect(found: list[Cid], expected: list[Cid]) -> None:
    if found != expected:
        raise SystemExit(f"a lookup found {len(found)} of {len(expected)} blocks")


if __name__ == "__main__":
    raise SystemExit(main())
