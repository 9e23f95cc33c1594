"""Stores around a store: one that counts, one that refuses writes, one whose writes are drafts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..cid import Buffer, Cid
from ..errors import Refused
from .base import Finding, Store
from .memory import MemoryStore


class WrapperStore(Store):
    """Forwards everything; a subclass overrides what it changes."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """See `Store`."""
        return self.inner.put_many(blocks, hashed=hashed)

    def get(self, cid: Cid) -> bytes:
        """See `Store`."""
        return self.inner.get(cid)

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `Store`."""
        self.inner.get_into(cids, out)

    def has(self, cid: Cid) -> bool:
        """See `Store`."""
        return self.inner.has(cid)

    def missing(self, cids: Iterable[Cid]) -> list[Cid]:
        """See `Store`."""
        return self.inner.missing(cids)

    def size_bytes(self, cid: Cid) -> int | None:
        """See `Store`."""
        return self.inner.size_bytes(cid)

    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """See `Store`."""
        return self.inner.cids(prefix)

    def delete_many(self, cids: Iterable[Cid]) -> int:
        """See `Store`."""
        return self.inner.delete_many(cids)

    def drop_damaged(self, cids: Iterable[Cid], *, unreadable: bool = False) -> dict[Cid, bytes]:
        """See `Store`."""
        return self.inner.drop_damaged(cids, unreadable=unreadable)

    def check(self) -> Iterator[Finding]:
        """See `Store`."""
        return self.inner.check()

    def close(self) -> None:
        """See `Store`."""
        self.inner.close()


class CountingStore(WrapperStore):
    """Counts calls by verb, and the blocks and bytes they moved.

    >>> from .memory import MemoryStore
    >>> store = CountingStore(MemoryStore())
    >>> store.put(Cid.of(b"hello", "raw", "blake3"), b"hello")
    True
    >>> store.counts["put_many"], store.counts["blocks_put"], store.counts["bytes_put"]
    (1, 1, 5)
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()
        """Calls: `put_many`, `get`, `get_into`, `has`, `missing`, `size_bytes`, `cids`, `delete_many`. Moved:
        `blocks_put`, `bytes_put` (offered, new or not), `blocks_got`, `bytes_got`."""

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """See `Store`."""
        self.counts["put_many"] += 1
        return self.inner.put_many((self._offered(cid, data) for cid, data in blocks), hashed=hashed)

    def _offered(self, cid: Cid, data: Buffer) -> tuple[Cid, Buffer]:
        self.counts["blocks_put"] += 1
        self.counts["bytes_put"] += memoryview(data).nbytes
        return cid, data

    def get(self, cid: Cid) -> bytes:
        """See `Store`."""
        self.counts["get"] += 1
        data = self.inner.get(cid)
        self._got(1, len(data))
        return data

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `Store`."""
        self.counts["get_into"] += 1
        self.inner.get_into(cids, out)
        self._got(len(cids), sum(target.nbytes for target in out))

    def _got(self, blocks: int, size_bytes: int) -> None:
        self.counts["blocks_got"] += blocks
        self.counts["bytes_got"] += size_bytes

    def has(self, cid: Cid) -> bool:
        """See `Store`."""
        self.counts["has"] += 1
        return self.inner.has(cid)

    def missing(self, cids: Iterable[Cid]) -> list[Cid]:
        """See `Store`."""
        self.counts["missing"] += 1
        return self.inner.missing(cids)

    def size_bytes(self, cid: Cid) -> int | None:
        """See `Store`."""
        self.counts["size_bytes"] += 1
        return self.inner.size_bytes(cid)

    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """See `Store`."""
        self.counts["cids"] += 1
        return self.inner.cids(prefix)

    def delete_many(self, cids: Iterable[Cid]) -> int:
        """See `Store`."""
        self.counts["delete_many"] += 1
        return self.inner.delete_many(cids)


class ReadOnlyStore(WrapperStore):
    """Refuses every write, before anything is read from what was to be written."""

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:  # noqa: ARG002
        """Raise `Refused`."""
        raise _read_only()

    def delete_many(self, cids: Iterable[Cid]) -> int:  # noqa: ARG002
        """Raise `Refused`."""
        raise _read_only()

    def drop_damaged(self, cids: Iterable[Cid], *, unreadable: bool = False) -> dict[Cid, bytes]:  # noqa: ARG002
        """Raise `Refused`."""
        raise _read_only()


class DraftStore(WrapperStore):
    """Keeps what is written in memory: the store below stays as it is, and its blocks are read as if they were here."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.drafts = MemoryStore()

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """See `Store`."""
        return self.drafts.put_many(((cid, data) for cid, data in blocks if not self.inner.has(cid)), hashed=hashed)

    def get(self, cid: Cid) -> bytes:
        """See `Store`."""
        return (self.drafts if self.drafts.has(cid) else self.inner).get(cid)

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `Store`."""
        for source, drafted in ((self.drafts, True), (self.inner, False)):
            pairs = [pair for pair in zip(cids, out, strict=True) if self.drafts.has(pair[0]) == drafted]
            source.get_into([cid for cid, _ in pairs], [target for _, target in pairs])

    def has(self, cid: Cid) -> bool:
        """See `Store`."""
        return self.drafts.has(cid) or self.inner.has(cid)

    def missing(self, cids: Iterable[Cid]) -> list[Cid]:
        """See `Store`."""
        return self.inner.missing(cid for cid in cids if not self.drafts.has(cid))

    def size_bytes(self, cid: Cid) -> int | None:
        """See `Store`."""
        drafted = self.drafts.size_bytes(cid)
        return self.inner.size_bytes(cid) if drafted is None else drafted

    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """See `Store`."""
        yield from self.drafts.cids(prefix)
        yield from self.inner.cids(prefix)

    def delete_many(self, cids: Iterable[Cid]) -> int:
        """Give drafts up. What the store below holds stays there."""
        return self.drafts.delete_many(cids)

    def drop_damaged(self, cids: Iterable[Cid], *, unreadable: bool = False) -> dict[Cid, bytes]:
        """Give damaged drafts up, as `delete_many` does."""
        return self.drafts.drop_damaged(cids, unreadable=unreadable)


def _read_only() -> Refused:
    return Refused("this store is read-only", hint="open it for writing")
