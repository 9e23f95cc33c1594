"""Room under a byte cap: the leaves that nobody needs make way for new ones, the longest unused first.

What a name, its log, a publication or a pin reaches stays, with one exception: the leaves of a conversation that was
fetched, if a source it came from shows that it has it now; they go last. Everything else that is reached counts as
the only copy, although its tokens would allow computing it again: that would need the same model on the same kind of
machine, which nobody here can promise. Where nothing else may go, the write is refused.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from ..cid import Cid
from ..diskerrors import disk_errors
from ..errors import BlockNotFound, Corrupt, TierFull, UnsupportedFormat
from ..index import Index
from ..private import open_regular, write_private
from ..store.disk import DiskStore
from . import clock
from .clock import Clock
from .gc import Garbage
from .reach import fetched, kept, reach
from .victims import choose, is_wanted, place_of, slot_bytes_of, turn

FILE_NAME: Final = "CAP"
MAX_CAP_BYTES: Final = (1 << 63) - 1
"""No file is longer."""
AHEAD: Final = 16
"""Where something has to go, this part of the cap is cleared of what nobody wants."""


def read_cap(folder: Path) -> int | None:
    """Give the most bytes that the store in `folder` may hold; None for as many as the disk has room for."""
    with disk_errors(folder):
        try:
            with open_regular(folder / FILE_NAME) as file:
                text = file.read(64).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_CAP_BYTES):
        raise UnsupportedFormat(
            f"{folder / FILE_NAME} holds {text!r}, not a number of bytes up to {MAX_CAP_BYTES}",
            hint="set the cap again with `cyberkv gc --cap SIZE`", path=str(folder / FILE_NAME),
        )  # fmt: skip
    return int(text)


def write_cap(folder: Path, cap_bytes: int | None) -> None:
    """Set the cap, at most `MAX_CAP_BYTES`, for every process that opens the store from now on; None lifts it."""
    with disk_errors(folder):
        if cap_bytes is None:
            (folder / FILE_NAME).unlink(missing_ok=True)
        else:
            write_private(folder / FILE_NAME, [f"{cap_bytes}\n".encode()], sync=True)


_SOLE: Final = "what is left is needed by conversations recorded here, and may be the only copy"


class Room:
    """Keeps one open store within its cap, and the order in which its leaves were used."""

    def __init__(
        self, store: DiskStore, index: Callable[[], Index], has: Callable[[str, Cid], bool] = lambda *_: False
    ) -> None:
        """Take over the store's calls `on_touch` and `make_room`.

        Where something has to go, `index` is asked for, and where that has to be leaves of conversations that were
        fetched, `has` for whether the source a conversation came from has it now (`peers.probe`).
        """
        self.clock = Clock(store.path / clock.FILE_NAME)
        self.evicted_leaves = 0
        self._store = store
        self._index = index
        self._has = has
        self._queue: deque[tuple[int, Cid]] = deque()
        self._held: set[Cid] = set()
        self._joined = -1
        """What was in use when the queue was made, and how many writers had joined: it holds until there is more."""
        store.on_touch = self.clock.touch
        store.make_room = self.make_room

    def close(self) -> None:
        """Write down when what was used."""
        self.clock.save()

    def make_room(self, needed_bytes: int, coming: Collection[Cid] = ()) -> None:
        """Evict until `needed_bytes` more fit under the cap. Raises as `fit`."""
        cap_bytes = read_cap(self._store.path)
        if cap_bytes is not None:
            self.fit(cap_bytes, needed_bytes, coming)

    def fit(self, cap_bytes: int, needed_bytes: int = 0, coming: Collection[Cid] = ()) -> None:
        """Evict until `needed_bytes` more fit under a cap.

        Spared are the blocks `coming`, and what was used since the store was opened. Nothing is evicted where that
        would not suffice: raises `TierFull`.
        """
        if self._store.used_bytes() + needed_bytes <= cap_bytes:
            return
        with self._store.writers.alone() as alone:
            used_bytes = self._store.used_bytes()  # again: another thread may just have made room
            if used_bytes + needed_bytes <= cap_bytes:
                return
            if not alone:
                reason = "another process is writing here, and what it needs cannot be told"
                raise _full(cap_bytes, used_bytes, needed_bytes, reason)
            try:
                victims = self._victims(used_bytes + needed_bytes - cap_bytes, cap_bytes // AHEAD, coming)
            except (BlockNotFound, Corrupt) as error:
                reason = f"what is needed cannot be told, because {error.message}"
                raise _full(cap_bytes, used_bytes, needed_bytes, reason) from error
            if not victims:
                raise _full(cap_bytes, used_bytes, needed_bytes, _SOLE)
            self._store.delete_many(victims)
            self.evicted_leaves += len(victims)

    def _victims(self, excess_bytes: int, ahead_bytes: int, coming: Collection[Cid]) -> list[Cid]:
        """Take enough from the queue; nothing if that is not enough."""
        index = self._index()
        sources = fetched(index)
        roots = set(index.roots())
        turns = self._first(roots, set(sources), excess_bytes, ahead_bytes, coming)
        if any(map(is_wanted, turns)):
            shown = {root for root, named in sources.items() if any(self._has(each, root) for each in named)}
            turns = self._first(roots, shown, excess_bytes, ahead_bytes, coming)
        return list(self._take(set(turns)))

    def _first(
        self, roots: set[Cid], elsewhere: set[Cid], excess_bytes: int, ahead_bytes: int, coming: Collection[Cid]
    ) -> list[int]:
        """Choose from the queue, made anew where it is old or too short; nothing if that is not enough."""
        held = roots - elsewhere
        for _ in range(2):
            if self._joined == self._store.writers.joined and held <= self._held:
                unused = (turn for turn, cid in self._queue if self._is_unused(turn) and cid not in coming)
                turns = list(choose(unused, excess_bytes, ahead_bytes))
                if sum(map(slot_bytes_of, turns)) >= excess_bytes:
                    return turns
            self._queue = deque(sorted(self._candidates(held, elsewhere)))
            self._held, self._joined = held, self._store.writers.joined
        return []

    def _is_unused(self, turn: int) -> bool:
        return self.clock.tick(place_of(turn)) <= self.clock.opened

    def _take(self, turns: set[int]) -> Iterator[Cid]:
        """Cut the queue behind the last of `turns`; what is passed over is in use, and would be passed over again."""
        while turns:
            turn, cid = self._queue.popleft()
            if turn in turns:
                turns.remove(turn)
                yield cid

    def _candidates(self, held: set[Cid], elsewhere: set[Cid]) -> Iterator[tuple[int, Cid]]:
        needed, wanted = kept(self._store, held), reach(self._store, elsewhere)
        for cid, place in self._store.leaves():
            if cid not in needed:
                yield turn(place, tick=self.clock.tick(place), is_wanted=cid in wanted), cid


def to_evict(
    store: DiskStore, index: Index, has: Callable[[str, Cid], bool], cap_bytes: int, garbage: Garbage
) -> list[Cid]:
    """List the leaves that `Room.fit` would evict after `garbage` went, and change nothing; `has` as for `Room`.

    Nodes that go count as long as they are, though the pages that hold them may be more. Raises as `Room.fit`.
    """
    used_bytes = store.used_bytes() - garbage.bytes
    excess_bytes = used_bytes - cap_bytes
    if excess_bytes <= 0:
        return []
    shown = {root for root, named in fetched(index).items() if any(has(each, root) for each in named)}
    spared = kept(store, set(index.roots()) - shown).union(garbage.leaves)
    ticks = Clock(store.path / clock.FILE_NAME)
    turns = {
        turn(place, tick=ticks.tick(place), is_wanted=True): cid for cid, place in store.leaves() if cid not in spared
    }
    chosen = list(choose(sorted(turns), excess_bytes))
    if sum(map(slot_bytes_of, chosen)) < excess_bytes:
        raise _full(cap_bytes, used_bytes, 0, _SOLE)
    return [turns[each] for each in chosen]


def _full(cap_bytes: int, used_bytes: int, needed_bytes: int, reason: str) -> TierFull:
    coming = f" and {needed_bytes:,} more are coming" if needed_bytes else ""
    return TierFull(
        f"a cap of {cap_bytes:,} bytes does not hold: {used_bytes:,} are used{coming}; {reason}",
        hint="choose a larger cap (`cyberkv gc --cap SIZE`), or give conversations up with `cyberkv forget NAME`",
        cap_bytes=cap_bytes, used_bytes=used_bytes, needed_bytes=needed_bytes, reason=reason,
    )  # fmt: skip
