"""Blocks in memory: for tests, plans and short-lived work."""

from collections.abc import Iterable, Iterator

from ..cid import HASHES, Buffer, Cid
from .base import Store, check_block, damaged, not_found


class MemoryStore(Store):
    """A dictionary of blocks, as checked and as verified as any other store."""

    def __init__(self) -> None:
        self._blocks: dict[Cid, bytes] = {}

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """See `Store`."""
        before = len(self._blocks)
        for cid, data in blocks:
            if cid not in self._blocks:
                check_block(cid, data, hashed=hashed)
                self._blocks[cid] = bytes(data)
        return len(self._blocks) - before

    def get(self, cid: Cid) -> bytes:
        """See `Store`."""
        if (data := self._blocks.get(cid)) is None:
            raise not_found(cid)
        if HASHES[cid.hash_name](data) != cid.digest:
            raise damaged(cid, "it does not hash to its CID")
        return data

    def has(self, cid: Cid) -> bool:
        """See `Store`."""
        return cid in self._blocks

    def size_bytes(self, cid: Cid) -> int | None:
        """See `Store`."""
        return None if (data := self._blocks.get(cid)) is None else len(data)

    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """See `Store`."""
        return iter([cid for cid in list(self._blocks) if cid.startswith(prefix)])

    def delete_many(self, cids: Iterable[Cid]) -> int:
        """See `Store`."""
        return sum(self._blocks.pop(cid, None) is not None for cid in list(cids))
