"""One source of a fetch: a thread that asks a peer, and what the peer has shown to be worth."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ..cid import HASHES, Buffer, Cid
from ..peers.base import Peer
from ..staging import Room
from .early import Early

CHUNK_BYTES: Final = 2 << 20
"""Blocks are handed on in chunks of this size: smaller ones cost more in switching threads than in hashing."""
SMALL_BYTES: Final = 16 << 10
"""Blocks up to this size, and those of a quick hash, are hashed as they come, while the processor's cache has them."""
PIECE_BLOCKS: Final = 32
"""Most blocks that one of several peers is asked for at a time: eight megabytes of large leaves."""
SLOW_S: Final = 1.0
"""After so long, what one peer was asked for may be asked of another that has nothing else to do."""
PAUSE_S: Final = 0.1
"""Wait before a peer that failed is asked again; four times as long after each failure."""
MOST_FAILURES: Final = 3
"""Failures in a row after which a peer that has given blocks before is left alone."""
END_S: Final = 2.0
"""Wait for a thread that was told to stop. One that is just connecting ends by itself, later, and harms nothing."""

Block = tuple[Cid, Buffer]
Checked = tuple[list[Block], Cid | None]
"""The sound blocks, up to the first that is not, and its CID."""


class Wanting(Protocol):
    """Knows what is missing, and takes it."""

    @property
    def done(self) -> bool:
        """Whether everything is here."""

    @property
    def graph(self) -> Cid | None:
        """A node below which everything is missing, which may come as one stream."""

    def awaited(self) -> list[Cid]:
        """List the blocks that may be asked for one by one."""

    def belongs(self, cid: Cid) -> bool:
        """Say whether a block is part of the graph, as far as its parents are known."""

    def take(self, cid: Cid, data: Buffer) -> bool:
        """Accept a block whose bytes were hashed, and say whether it was awaited."""


@dataclass(eq=False)
class Unit:
    """What a source is asked for at one time: some blocks, or everything below one."""

    want: Wanting
    cids: tuple[Cid, ...]
    graph: bool
    since_s: float
    given_up: bool = False
    """Whatever else comes of it is ignored."""
    named_slow: bool = False
    repeats: int = 0
    """Blocks in a row that a stream gave and that were here already."""
    early: Early = field(default_factory=Early)
    """What a stream gave too early."""

    def __post_init__(self) -> None:
        self._asked = frozenset(self.cids)

    def asks_for(self, cid: Cid) -> bool:
        """Say whether a block may come of it."""
        return self.want.belongs(cid) if self.graph else cid in self._asked


class Came(NamedTuple):
    """Blocks have come and are being hashed, or were."""

    source: "Source"
    unit: Unit
    checked: "Future[Checked]"


class Ended(NamedTuple):
    """A source is through with a unit."""

    source: "Source"
    unit: Unit
    error: Exception | None


@dataclass(frozen=True)
class SourceReport:
    """What one peer gave."""

    peer: str
    blocks: int
    """Blocks that were awaited when they came."""
    bytes: int
    busy_s: float
    """Time in which it had something to do."""
    state: str
    """`ok`, or why it was not asked any more."""


@dataclass(eq=False)
class Source:
    """A peer and its thread, which ends with `close`."""

    peer: Peer
    room: Room
    hashers: Executor
    events: "queue.SimpleQueue[Came | Ended]"
    clock: Callable[[], float]
    unit: Unit | None = None
    streams: bool = False
    lacks: set[Cid] = field(default_factory=set)
    gave_roots: set[Cid] = field(default_factory=set)
    blocks: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0
    state: str = "ok"
    failures: int = 0
    retry_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.streams = self.peer.has_dag
        self._inbox: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._collecting = threading.Lock()
        self._collected: list[Block] = []
        self._collected_bytes = 0

    @property
    def rate_bytes_s(self) -> float:
        """Measured throughput; before a megabyte has come it is not known, and taken as endless."""
        return self.size_bytes / self.busy_s if self.size_bytes >= CHUNK_BYTES and self.busy_s else float("inf")

    @property
    def piece_blocks(self) -> int:
        """Blocks to ask for at once, so that a slow peer is through before others have to help it out."""
        given = int(self.blocks / self.busy_s * SLOW_S / 2) if self.busy_s else PIECE_BLOCKS
        return max(1, min(given, PIECE_BLOCKS))

    @property
    def live(self) -> bool:
        """Whether it may be asked, now or later."""
        return self.state == "ok"

    def ask(self, unit: Unit) -> None:
        """Begin with a unit. `Came` and at last one `Ended` will be in the events."""
        self.unit = unit
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"source {self.peer.name}", daemon=True)
            self._thread.start()
        self._inbox.put(unit)

    def give_up(self) -> None:
        """Stop waiting for what is under way."""
        if self.unit is not None and not self.unit.given_up:
            self.unit.given_up = True
            self.peer.abort()

    def failed(self, reason: str) -> None:
        """Count a failure: the peer rests, or is left alone if it never gave anything or failed too often."""
        self.failures += 1
        if not self.blocks or self.failures >= MOST_FAILURES:
            self.state = reason
        self.retry_at_s = self.clock() + PAUSE_S * 4 ** (self.failures - 1)

    def gave(self, size_bytes: int) -> None:
        """Count a block that was awaited."""
        self.blocks += 1
        self.size_bytes += size_bytes
        self.failures = 0

    def report(self) -> SourceReport:
        """Sum up."""
        return SourceReport(self.peer.name, self.blocks, self.size_bytes, round(self.busy_s, 6), self.state)

    def close(self) -> None:
        """Stop the thread, whatever it waits for."""
        self.give_up()
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(END_S)

    def hand_over(self) -> None:
        """Have hashed what has come so far, if it is less than a chunk. Called while nothing else happens."""
        with self._collecting:
            if self._collected and self.unit is not None:
                self._submit(self.unit)

    def _work(self) -> None:
        while (unit := self._inbox.get()) is not None:
            error: Exception | None = None
            try:
                self._read(unit)
            except Exception as caught:
                error = caught
                _forget_frames(error)
            with self._collecting:
                if self._collected:
                    self._submit(unit)
            self.events.put(Ended(self, unit, error))
            del unit

    def _read(self, unit: Unit) -> None:
        read = self.peer.read_dag(unit.cids[0], self.room) if unit.graph else self.peer.read_many(unit.cids, self.room)
        for cid, data in read:
            if _at_once(cid, data) and not _is_sound(cid, data):
                with self._collecting:
                    self._submit(unit)
                    self.events.put(Came(self, unit, _known(([], cid))))
                return
            with self._collecting:
                self._collected.append((cid, data))
                self._collected_bytes += len(data)
                if self._collected_bytes >= CHUNK_BYTES:
                    self._submit(unit)
            del data  # its memory is to be free as soon as it is stored

    def _submit(self, unit: Unit) -> None:
        chunk, self._collected, self._collected_bytes = self._collected, [], 0
        hashed = all(_at_once(cid, data) for cid, data in chunk)
        self.events.put(Came(self, unit, _known((chunk, None)) if hashed else self.hashers.submit(_check, chunk)))


def _check(chunk: list[Block]) -> Checked:
    for count, (cid, data) in enumerate(chunk):
        if not _at_once(cid, data) and not _is_sound(cid, data):
            return chunk[:count], cid
    return chunk, None


def _at_once(cid: Cid, data: Buffer) -> bool:
    return cid.hash_name == "blake3" or len(data) <= SMALL_BYTES


def _is_sound(cid: Cid, data: Buffer) -> bool:
    return HASHES[cid.hash_name](data) == cid.digest


def _known(checked: Checked) -> "Future[Checked]":
    future: Future[Checked] = Future()
    future.set_result(checked)
    return future


def _forget_frames(error: BaseException | None) -> None:
    """Drop tracebacks: their frames would keep memory in use for as long as the error is remembered."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
