"""Fills a store with small blocks in one process and looks at it from another; reports as JSON."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests.scale.measure import Measured

LEAVES = 8
"""One block in so many is a leaf, which takes a slot of 4 KiB; the others are nodes."""


def block(number: int) -> tuple[Cid, bytes]:
    if number % LEAVES:
        data = b"\x58\x40" + number.to_bytes(8, "big") * 8  # dag-cbor: 64 bytes
        return Cid.of(data, "dag-cbor", "sha2-256"), data
    data = number.to_bytes(8, "big")
    return Cid.of(data, "raw", "blake3"), data


def _all(count: int) -> Iterator[tuple[Cid, bytes]]:
    return map(block, range(count))


def fill(count: int, folder: Path) -> None:
    measured = Measured()
    with DiskStore(folder) as store:
        new = measured("fill", lambda: store.put_many(_all(count), hashed=True))
    print(json.dumps({"new": new, "peak_bytes": measured.peak_bytes}))


def look(count: int, folder: Path) -> None:
    """As a program does that was just started."""
    measured = Measured()
    store = measured("open", lambda: DiskStore(folder))
    asked = [block(number) for number in range(0, count, max(1, count // 2000))]
    absent = [Cid.of(data, "raw", "sha2-256") for _, data in asked]
    found = {
        "has": measured("has", lambda: sum(store.has(cid) for cid, _ in asked)),
        "has_absent": sum(store.has(cid) for cid in absent),
        "wrong": sum(store.get(cid) != data for cid, data in asked),
        "asked": len(asked),
        "listed": measured("list", lambda: sum(1 for _ in store.cids())),
        "prefixed": sum(1 for _ in store.cids(bytes(asked[0][0][:20]))),
        "findings": len(measured("check", lambda: list(store.check()))),
        "deleted": measured("delete", lambda: store.delete_many(cid for cid, _ in asked)),
        "again": measured("put", lambda: store.put_many(asked)),
    }
    store.close()
    print(json.dumps(found | {"peak_bytes": measured.peak_bytes}))


if __name__ == "__main__":
    {"fill": fill, "look": look}[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))
