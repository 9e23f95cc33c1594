"""Several peers asked at once: each takes the next piece when it is done with the last, so a slow one costs little.

A peer that streams sends everything below a segment from its beginning; the others take single blocks from its end,
until they meet. A peer that lied is never asked again, one that failed rests first, and what a slow one holds up is
asked of another.
"""

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ..cid import Buffer, Cid
from ..errors import (
    AccessDenied,
    BlockNotFound,
    Corrupt,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedCar,
    NotOffered,
    PeerMisbehaved,
    PeerUnreachable,
    TruncatedCar,
)
from ..peers.base import Peer, not_held
from ..staging import Staging
from .source import SLOW_S, Came, Ended, Source, SourceReport, Unit, Wanting

HASH_THREADS: Final = 2
TICK_S: Final = 0.1
"""After so long without news, what has come is hashed and stored, however little it is."""
MET_REPEATS: Final = 16
"""Blocks in a row that a stream repeats when it has come to where the others began."""
MOST_REPEATS: Final = 1024
"""Blocks in a row that a stream may repeat where there are no others: one that goes in circles is left."""

_TELLING: Final = (
    DigestMismatch, PeerMisbehaved, LimitExceeded, Corrupt, AccessDenied, PeerUnreachable, BlockNotFound, CyberKVError,
)  # fmt: skip
"""Where a block is missing for several reasons, the user learns the first of these."""
_LIES: Final = (DigestMismatch, LimitExceeded)
_SHOWN_CIDS: Final = 20
_KEPT: Final = "what was verified is kept; fetch again to bring only the rest"
_NO_ROOT: Final = "nothing of it came: check the CID, or ask another source"


class Refusal(NamedTuple):
    """Why a peer was not taken at its word."""

    peer: str
    cid: Cid
    """The block that was wrong, else the first that was being asked for."""
    reason: str


class Sources:
    """The peers of one fetch. Everything here runs in the caller's thread; the peers have threads of their own."""

    def __init__(self, peers: Sequence[Peer], budget_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare, without asking anybody. Somebody has to have the turn before anything is brought."""
        self._clock = clock
        self._staging = Staging(budget_bytes)
        self._hashers = ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="hash")
        self._events: queue.SimpleQueue[Came | Ended] = queue.SimpleQueue()
        self._sources = [Source(peer, self._staging.room, self._hashers, self._events, clock) for peer in peers]
        self._errors: list[tuple[str, CyberKVError]] = []
        self.refused: list[Refusal] = []
        """Lies, truncations and failures, in order. A peer that merely lacks a block is not in it."""

    def turn_to(self, root: Cid, on_idle: Callable[[], None]) -> None:
        """Bring for the conversation `root` from now on. `on_idle` is called when nothing has come for a moment."""
        self._root = root
        self._on_idle = on_idle

    def reports(self) -> tuple[SourceReport, ...]:
        """Sum up what each peer gave, in the order in which they were named."""
        return tuple(source.report() for source in self._sources)

    def close(self) -> None:
        """Stop asking. Peers stay open; what was under way fails."""
        self._staging.close()
        for source in self._sources:
            source.close()
        self._hashers.shutdown()

    def bring(self, want: Wanting) -> None:
        """Have peers give what is wanted, until it is all here or nobody has the rest, which is for `verdict`."""
        while not want.done:
            self._deal(want)
            if not self._step():
                return
        # What streams beyond the end is not wanted, but whoever sends it shows what it is worth.
        until_s = self._clock() + SLOW_S
        while any(source.unit is not None and source.unit.graph for source in self._sources):
            if self._clock() > until_s:
                for source in self._sources:
                    if source.unit is not None and source.unit.graph:
                        self._name_slow(source.unit, source)
                        source.give_up()
            self._step()

    def _step(self) -> bool:
        """Wait for one event and act on it. False where there is nothing to wait for."""
        now_s = self._clock()
        busy = any(source.unit is not None for source in self._sources)
        resting = any(source.live and source.retry_at_s > now_s for source in self._sources)
        if not busy and not resting:
            return False
        try:
            event = self._events.get(timeout=TICK_S)
        except queue.Empty:
            for source in self._sources:
                source.hand_over()
            self._on_idle()
        else:
            if isinstance(event, Came):
                self._came(event)
            else:
                self._ended(event)
        return True

    def _deal(self, want: Wanting) -> None:
        now_s = self._clock()
        free = [each for each in self._sources if each.live and each.unit is None and each.retry_at_s <= now_s]
        if not free:
            return
        free.sort(key=lambda source: -source.rate_bytes_s)
        streaming = any(each.unit is not None and each.unit.graph for each in self._sources)
        graph, awaited = want.graph, want.awaited()
        for source in free:
            if graph is not None and source.streams and not streaming:
                source.ask(Unit(want, (graph,), graph=True, since_s=now_s))
                streaming = True
            elif cids := self._share(awaited, source, streaming=streaming):
                source.ask(Unit(want, tuple(cids), graph=False, since_s=now_s))

    def _share(self, awaited: Sequence[Cid], source: Source, *, streaming: bool) -> list[Cid]:
        """Choose what a source is asked for: what nobody else was asked for, else what another is slow with."""
        units = [each.unit for each in self._sources if each.unit is not None and not each.unit.graph]
        asked = {cid for unit in units for cid in unit.cids}
        awaited = [cid for cid in awaited if cid not in source.lacks]
        cids = [cid for cid in awaited if cid not in asked]
        if not cids:
            cids = self._held_up(awaited)
        sharing = sum(each.live for each in self._sources)
        if sharing == 1:
            return cids
        count = min(source.piece_blocks, -(-len(cids) // sharing))
        return cids[len(cids) - count :] if streaming else cids[:count]

    def _held_up(self, awaited: Sequence[Cid]) -> list[Cid]:
        """List what was asked for of others that are slow with it, and name them."""
        held_up: set[Cid] = set()
        for source in self._sources:
            unit = source.unit
            if unit is not None and not unit.graph and self._clock() - unit.since_s > SLOW_S:
                self._name_slow(unit, source)
                held_up.update(unit.cids)
        return [cid for cid in awaited if cid in held_up]

    def _name_slow(self, unit: Unit, source: Source) -> None:
        if not unit.named_slow and not unit.given_up:
            unit.named_slow = True
            reason = f"{source.peer.name} is slow: not through after {SLOW_S:g} s, others were asked"
            self.refused.append(Refusal(source.peer.name, unit.cids[0], reason))

    def _came(self, event: Came) -> None:
        source, unit = event.source, event.unit
        sound, wrong = event.checked.result()
        for cid, data in sound:
            if unit.given_up:
                return
            self._take(source, unit, cid, data)
        if wrong is not None and not unit.given_up:
            self._refuse(source, wrong, DigestMismatch(f"bytes do not hash to {wrong}", cid=str(wrong)))
            source.give_up()

    def _take(self, source: Source, unit: Unit, cid: Cid, data: Buffer) -> None:
        if not unit.asks_for(cid):
            if not unit.graph or not unit.early.put(cid, data):
                error = PeerMisbehaved(
                    f"{source.peer.name} sends {cid}, which was not asked for", peer=source.peer.name
                )
                self._failed_unit(source, unit, unit.cids[0], error)
                source.give_up()
            return
        if cid == self._root:
            source.gave_roots.add(cid)
        if unit.want.take(cid, data):
            source.gave(len(data))
            unit.repeats = 0
            if unit.graph and cid.codec != "raw":
                for early, its_data in unit.early.pop(unit.want.belongs):
                    self._take(source, unit, early, its_data)
        elif not unit.graph:
            unit.repeats += 1
            if unit.repeats > len(unit.cids):  # some may have come from another peer meanwhile, and each comes once
                again = PeerMisbehaved(f"{source.peer.name} sends {cid} again and again", peer=source.peer.name)
                self._failed_unit(source, unit, cid, again)
                source.give_up()
        else:
            unit.repeats += 1
            others = any(each.live for each in self._sources if each is not source)
            if unit.repeats > (MET_REPEATS if others else MOST_REPEATS):
                source.give_up()

    def _ended(self, event: Ended) -> None:
        source, unit, error = event.source, event.unit, event.error
        source.busy_s += self._clock() - unit.since_s
        source.unit = None
        if unit.given_up:
            return
        if error is None:
            if unit.graph and not unit.want.done:
                short = TruncatedCar(
                    f"{source.peer.name} ends the stream of {unit.cids[0]} before it is complete", peer=source.peer.name
                )
                self._failed_unit(source, unit, unit.cids[0], short)
            elif left := [
                cid for cid in unit.want.awaited() if not unit.graph and unit.asks_for(cid)
            ]:  # else it was asked for ever
                self._failed_unit(source, unit, left[0], not_held(source.peer.name, left))
        elif isinstance(error, CyberKVError):
            self._failed_unit(source, unit, unit.cids[0], error)
        else:
            raise error

    def _failed_unit(self, source: Source, unit: Unit, cid: Cid, error: CyberKVError) -> None:
        """Decide what a source that failed may still be asked for."""
        if unit.graph:
            source.streams = False
            if isinstance(error, BlockNotFound):
                self._errors.append((source.peer.name, error))
            elif not isinstance(error, NotOffered):  # it is asked for single blocks, which is all a gateway must have
                self._refuse(source, cid, error, drop=isinstance(error, _LIES))
                if isinstance(error, PeerUnreachable):
                    source.failed(error.message)
            return
        if isinstance(error, BlockNotFound | TruncatedCar | MalformedCar):
            source.lacks.update(unit.cids)
            if not isinstance(error, BlockNotFound):  # a file that ends badly may still hold other things
                self._refuse(source, cid, error, drop=False)
            elif source.peer.whole_dags and self._root in source.gave_roots:
                cut = TruncatedCar(
                    f"{source.peer.name} ends before the conversation is complete", peer=source.peer.name
                )
                self._refuse(source, cid, cut, drop=False)
            else:
                self._errors.append((source.peer.name, error))
        elif isinstance(error, PeerUnreachable):
            source.failed(error.message)
            self._refuse(source, cid, error, drop=False)
        else:
            self._refuse(source, cid, error)

    def _refuse(self, source: Source, cid: Cid, error: CyberKVError, *, drop: bool = True) -> None:
        self._errors.append((source.peer.name, error))
        self.refused.append(Refusal(source.peer.name, cid, error.message))
        if drop:
            source.state = error.message

    def verdict(self, missing: Sequence[Cid]) -> CyberKVError:
        """Build the most telling error for blocks that no peer gave; its data lists them and every refusal."""
        data: dict[str, object] = {
            "cid": str(missing[0]),
            "missing": [str(cid) for cid in missing[:_SHOWN_CIDS]],
            "count": len(missing),
            "refused": [each._asdict() | {"cid": str(each.cid)} for each in self.refused],
        }
        for kind in _TELLING:
            for name, error in self._errors:
                if isinstance(error, kind):
                    reason = error.message if name in error.message else f"{error.message} (from {name})"
                    next_step = _NO_ROOT if kind is BlockNotFound and self._root in missing else _KEPT
                    hint = f"{error.hint}; {next_step}" if error.hint else next_step
                    if isinstance(error, DigestMismatch):
                        data["cid"] = error.data["cid"]  # the block that was altered, not the first that is missing
                    return type(error)(f"{data['cid']} was not received: {reason}", hint=hint, **data | {"peer": name})
        return BlockNotFound(f"{missing[0]} is not here, and no peer was named", hint="name one with --from", **data)
