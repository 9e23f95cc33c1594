"""What every store does: keep blocks by CID, and never give back bytes that do not hash to it.

Few verbs are abstract; the rest is built on them, and a store overrides what it can do faster. The contract
is a test class, `tests/contracts/store.py`, which any store's tests subclass.

>>> from .memory import MemoryStore
>>> with MemoryStore() as store:
...     hello = Cid.of(b"hello", "raw", "blake3")
...     store.put(hello, b"hello"), store.put(hello, b"hello"), store.get(hello)
(True, False, b'hello')
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from ..checks import check_limits
from ..cid import Buffer, Cid
from ..errors import BlockNotFound, DigestMismatch, MalformedBytes
from ..nodes import Node


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, as integrity checks report it."""

    cid: Cid | None
    """The block it is about, if it is about one."""
    what: str
    """`block`, `node`, `leaf`, `segment`, `slab`, `slot`, `store`, `conversation` or `index`."""
    reason: str


class Store(ABC):
    """Blocks by CID. Every method may be called from any thread."""

    @abstractmethod
    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """Store blocks and return how many were new; a block already here is skipped.

        Each block is checked against its CID, unless `hashed`: the caller made the CID from these very bytes.
        `blocks` may be a generator; a buffer must keep its bytes until the call returns. On a durable store
        the return is the acknowledgement: what was stored survives a power cut. An error may leave earlier
        blocks of the iterable stored, each of them whole. Raises `DigestMismatch`, `LimitExceeded`,
        `TierFull`.
        """

    @abstractmethod
    def get(self, cid: Cid) -> bytes:
        """Give a block's bytes, verified.

        Raises `BlockNotFound`; `DigestMismatch` if what is stored is damaged.
        """

    @abstractmethod
    def has(self, cid: Cid) -> bool:
        """Say whether the block is here (its bytes are verified when they are read)."""

    @abstractmethod
    def size_bytes(self, cid: Cid) -> int | None:
        """Give a block's length, or None if it is not here."""

    @abstractmethod
    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """List what is here whose binary CID starts with `prefix`.

        Changes made meanwhile may or may not show.
        """

    @abstractmethod
    def delete_many(self, cids: Iterable[Cid]) -> int:
        """Forget blocks and return how many were here."""

    def drop_damaged(self, cids: Iterable[Cid], *, unreadable: bool = False) -> dict[Cid, bytes]:
        """Forget those blocks whose bytes still do not hash to them, and give the bytes as they were found.

        A block that was stored again meanwhile stays, and so does one whose bytes cannot all be read, for its file may
        come back: only with `unreadable` is it given up. A store that cannot read damaged bytes gives none for them.
        """
        dropped: dict[Cid, bytes] = {}
        for cid in cids:
            try:
                self.get(cid)
            except DigestMismatch as error:
                if unreadable or not error.data["unreadable"]:
                    self.delete_many([cid])
                    dropped[cid] = b""
            except BlockNotFound:
                pass
        return dropped

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """Read blocks into writable buffers of exactly their sizes, verified.

        Shape: `out[i]` takes the bytes of `cids[i]`. Raises `BlockNotFound`, `DigestMismatch`, and
        `MalformedBytes` for a block of another size than its buffer; `out` then holds nothing to be relied
        on.
        """
        for cid, target in zip(cids, out, strict=True):
            data = self.get(cid)
            check_size(cid, len(data), target)
            target.cast("B")[:] = data

    def missing(self, cids: Iterable[Cid]) -> list[Cid]:
        """List which of `cids` are not here, in order."""
        return [cid for cid in cids if not self.has(cid)]

    def put(self, cid: Cid, data: Buffer) -> bool:
        """Store one block, checked, and say whether it was new. Raises as `put_many`."""
        return self.put_many([(cid, data)]) == 1

    def put_node(self, node: Node) -> Cid:
        """Encode and store a node and give its CID. Raises `MalformedNode` for a field out of its range."""
        data = node.encode()
        cid = Cid.of(data, "dag-cbor", "sha2-256")
        self.put_many([(cid, data)], hashed=True)
        return cid

    def check(self) -> Iterator[Finding]:
        """Report damage to the store's own structures; the blocks themselves are `fsck`'s work."""
        yield from ()

    def close(self) -> None:  # noqa: B027  # a store without resources has nothing to do
        """Release files. The store must not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_block(cid: Cid, data: Buffer, *, hashed: bool) -> None:
    """Check a block before it is stored: size first, then hash. Raises `LimitExceeded`, `DigestMismatch`."""
    limit_size(cid, data)
    if not hashed:
        cid.verify(data)


def limit_size(cid: Cid, data: Buffer) -> int:
    """Give the length of a block that is not too large. Raises `LimitExceeded`."""
    size_bytes = memoryview(data).nbytes
    check_limits(cid, size_bytes)
    return size_bytes


def check_size(cid: Cid, size_bytes: int, target: memoryview) -> None:
    """Check that a block fills the buffer it is read into. Raises `MalformedBytes`."""
    if size_bytes != target.nbytes:
        raise MalformedBytes(
            f"block {cid} has {size_bytes} bytes, expected {target.nbytes}",
            hint="the block was made for another layout; it cannot be used here",
            cid=str(cid), expected=target.nbytes, got=size_bytes,
        )  # fmt: skip


def not_found(cid: Cid) -> BlockNotFound:
    """Build the error for a block that is not here."""
    return BlockNotFound(f"block {cid} is not in the store", hint="fetch it with `cyberkv fetch`", cid=str(cid))


def damaged(cid: Cid, reason: str, *, unreadable: bool = False) -> DigestMismatch:
    """Build the error for a stored block whose bytes went bad, or cannot all be read and so cannot be judged."""
    drops = "`cyberkv fsck --repair` drops damaged blocks; then fetch or compute them again"
    return DigestMismatch(
        f"stored block {cid} is damaged: {reason}",
        hint=f"put its file back, if there is a copy; else {drops}" if unreadable else drops,
        cid=str(cid), reason=reason, unreadable=unreadable,
    )  # fmt: skip
