"""Verified blocks on their way into a store, counted, and written durably in batches while others come in."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future

from ..cid import Buffer, Cid
from ..errors import Refused
from ..staging import room_bytes
from ..store.base import Store
from .progress import Progress

_FEWEST_BATCHES = 4
"""Batches that the budget is cut into: one waits while another is written and others come in."""


class Landing:
    """Collects blocks, and stores each batch durably in the writer's thread. What was stored survives a kill."""

    def __init__(
        self, store: Store, progress: Progress, budget_bytes: int, most_bytes: int | None, writer: Executor
    ) -> None:
        self._store = store
        self._progress = progress
        self._batch_bytes = budget_bytes // _FEWEST_BATCHES
        self._most_bytes = most_bytes
        self._waiting: list[tuple[Cid, Buffer]] = []
        self._waiting_bytes = 0
        self._sizes: dict[Cid, int] = {}
        """Blocks that wait or are being written, with their lengths."""
        self._writer = writer
        self._write: Future[list[Cid]] | None = None
        self._met: set[Cid] = set()
        self.had = 0
        self.fetched = 0
        self.fetched_bytes = 0

    def size_bytes(self, cid: Cid) -> int | None:
        """Give the length of a block that is here or about to be, else None; count it as had if it is."""
        size_bytes = self._sizes[cid] if cid in self._sizes else self._store.size_bytes(cid)
        if size_bytes is not None and cid not in self._met:
            self.had += 1
            self._meet(cid, size_bytes)
        return size_bytes

    def absent(self, cids: Sequence[Cid]) -> set[Cid]:
        """Give those that are neither here nor about to be."""
        return set(self._store.missing(cid for cid in cids if cid not in self._sizes))

    def count(self, cid: Cid, data: Buffer) -> None:
        """Count a fetched block that is not stored yet. Raises `Refused` for more bytes than were allowed."""
        if cid in self._met:
            return
        self.fetched += 1
        self.fetched_bytes += len(data)
        self._meet(cid, len(data))
        if self._most_bytes is not None and self.fetched_bytes > self._most_bytes:
            raise Refused(
                f"over {self._most_bytes} bytes have come, and more would have to",
                hint="allow more with --max-bytes; what was checked is kept",
                most_bytes=self._most_bytes, bytes_fetched=self.fetched_bytes,
            )  # fmt: skip

    def add(self, cid: Cid, data: Buffer) -> None:
        """Take a block whose bytes were hashed and which is not here. Raises as `flush`."""
        self.count(cid, data)
        self._waiting.append((cid, data))
        self._sizes[cid] = len(data)
        self._waiting_bytes += room_bytes(len(data)) if cid.codec == "raw" else len(data)
        if self._waiting_bytes >= self._batch_bytes:
            self.flush()

    def flush(self) -> None:
        """Begin to store what is waiting, once the batch before it is stored. Raises `TierFull`."""
        self.finish()
        if self._waiting:
            batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._write = self._writer.submit(_store, self._store, batch)

    def finish(self) -> None:
        """Wait until what was flushed is stored. Raises `TierFull`."""
        if self._write is not None:
            write, self._write = self._write, None
            for cid in write.result():
                del self._sizes[cid]

    def drop(self) -> None:
        """Forget what is waiting: nothing more of a conversation that is refused is stored."""
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """Store what is waiting. Raises `TierFull`."""
        self.flush()
        self.finish()

    def _meet(self, cid: Cid, size_bytes: int) -> None:
        self._met.add(cid)
        self._progress.advance(1, size_bytes if cid.codec == "raw" else 0)


def _store(store: Store, batch: list[tuple[Cid, Buffer]]) -> list[Cid]:
    cids = [cid for cid, _ in batch]
    try:
        store.put_many(batch, hashed=True)
    finally:
        batch.clear()  # the memory is wanted for what comes in
    return cids
