"""Verified blocks on their way into a store, counted and written durably in batches."""

from ..cid import Cid
from ..store.base import Store
from .progress import Progress


class Landing:
    """Collects blocks up to a budget, then stores them in one go. Whatever was flushed survives a kill."""

    def __init__(self, store: Store, progress: Progress, budget_bytes: int) -> None:
        self._store = store
        self._progress = progress
        self._budget_bytes = budget_bytes
        self._waiting: dict[Cid, bytes] = {}
        self._waiting_bytes = 0
        self._met: set[Cid] = set()
        self.had = 0
        self.fetched = 0
        self.fetched_bytes = 0

    def size_bytes(self, cid: Cid) -> int | None:
        """Give the length of a block that is here or about to be, else None; count it as had if it is."""
        size_bytes = len(self._waiting[cid]) if cid in self._waiting else self._store.size_bytes(cid)
        if size_bytes is not None and cid not in self._met:
            self.had += 1
            self._meet(cid, size_bytes)
        return size_bytes

    def count(self, cid: Cid, data: bytes) -> None:
        """Count a fetched block that is not stored yet."""
        if cid not in self._met:
            self.fetched += 1
            self.fetched_bytes += len(data)
            self._meet(cid, len(data))

    def add(self, cid: Cid, data: bytes) -> None:
        """Take a block whose bytes were hashed and which is not here."""
        self.count(cid, data)
        self._waiting[cid] = data
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= self._budget_bytes:
            self.flush()

    def flush(self) -> None:
        """Store what is waiting, durably. Raises `TierFull`."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        if waiting:
            self._store.put_many(waiting.items(), hashed=True)

    def drop(self) -> None:
        """Forget what is waiting: nothing more of a conversation that is refused is stored."""
        self._waiting, self._waiting_bytes = {}, 0

    def _meet(self, cid: Cid, size_bytes: int) -> None:
        self._met.add(cid)
        self._progress.advance(1, size_bytes if cid.codec == "raw" else 0)
