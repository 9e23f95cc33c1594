"""Put graphs on a Kubo node and pin them there, part by part.

A recursive pin is the proof that the node holds all of a part, and what keeps it from the node's garbage collector
until the root is pinned. So a part that is pinned, or can be, is not sent. An upload that was stopped goes on at the
part where it stopped, and one that grows an earlier conversation sends only what is new.
"""

from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Final

from ...car import car_head, car_header
from ...cid import Buffer, Cid
from ...errors import PeerError, PeerMisbehaved, RpcFailed, TierFull
from .pins import PIN_PREFIX
from .rpc import KuboRpc, Multipart

PART_NAME: Final = f"{PIN_PREFIX}part"
"""Name of the pins of parts, by which those of a stopped upload are told from pins that somebody else set."""
CHUNK_BYTES: Final = 1 << 20
"""Small blocks go out together in chunks of this size."""
SPLIT_BYTES: Final = 16 << 20
"""A part from this size on is sent by two connections."""
_SMALL_BYTES: Final = 32 << 10
"""A block from this size on goes out by itself, without being copied."""
ABSENT: Final = ("not found", "could not find")
_NOT_PINNED: Final = "not pinned"
_SENDS: Final = 3
"""Times a part is sent whose blocks the node's garbage collector takes before they are pinned."""
_NO_SUCH_COMMAND: Final = 404
_QUIET: Final = {"fast-provide-root": "false", "fast-provide-dag": "false"}
"""Parts are not announced: the root is."""


@dataclass(frozen=True)
class Part:
    """A node with everything below it, which is read only if it must be sent, and then perhaps more than once."""

    root: Cid
    blocks: int | None
    """How many there are at most, where that is known."""
    sizes: Sequence[tuple[Cid, int]]
    """CID and bytes of each block that may have to be sent."""
    read: Callable[[int, int], Iterable[tuple[Cid, Buffer]]]
    """Gives those from one place in `sizes` up to another. Two may be read at the same time, by two threads."""


@dataclass(frozen=True)
class KuboReport:
    """What an upload did."""

    parts_sent: int
    parts_had: int
    """Parts that the node held already."""
    bytes_sent: int
    """Bytes of the CAR streams."""
    announced: bool
    """Whether the node set out to tell the network that it provides the root."""
    note: str | None
    """Why it did not, in the node's words."""


class KuboUpload:
    """One upload to one node. Its parts stay pinned until `finish`, also when it is never reached."""

    def __init__(self, rpc: KuboRpc) -> None:
        self._rpc = rpc
        self._sent: set[Cid] = set()
        self._sent_bytes = 0
        self._counting = Lock()
        self._parts: dict[Cid, bool] = {}
        """Each part, and whether its pin is ours to remove."""

    def pin_name(self, cid: Cid) -> str | None:
        """Give the name of the recursive pin that the node has on `cid`, "" for one without; None if it has no pin."""
        options = {"type": "recursive", "names": "true"}
        try:
            answer = self._rpc.json("pin/ls", str(cid), options=options)
        except RpcFailed as error:
            if _NOT_PINNED not in str(error.data["reason"]):
                raise
            return None
        try:
            return str(answer["Keys"][str(cid)].get("Name") or "")
        except (AttributeError, KeyError, TypeError) as error:
            raise PeerMisbehaved(f"{self._rpc.name} does not say how it pins {cid}", cid=str(cid)) from error

    def held(self, part: Cid) -> None:
        """Count a part as one that the node holds, because a pinned root is known to link to it."""
        self._parts.setdefault(part, False)

    def all_held(self, parts: Iterable[Cid]) -> None:
        """Count all parts as held, for the root is pinned. Pins that a stopped upload left on them go in `close`."""
        left: set[object] = set()
        options = {"type": "recursive", "names": "true", "name": PART_NAME, "stream": "true"}
        with suppress(PeerError):  # then they stay, and do no harm
            left.update(line.get("Cid") for line in self._rpc.lines("pin/ls", options=options)
                        if line.get("Name") == PART_NAME)  # fmt: skip
        for part in parts:
            self._parts.setdefault(part, str(part) in left)

    def add(self, part: Part, *, believe: bool = True, send: bool = True) -> bool:
        """Make the node hold and pin all of a part; say whether it had to be sent.

        Without `believe`, a pin that is there already is not taken for proof: the node has to walk the part once more.
        Without `send`, a part that is not there is left to whoever sends the root, with which it is pinned. Raises
        `PeerError`, `AccessDenied`, `TierFull`, and what reading the blocks raises.
        """
        name = self.pin_name(part.root)
        ours = name in (None, PART_NAME)
        keep = PART_NAME if ours else str(name)
        if (believe and name is not None) or self._pin(part, keep, _QUIET):
            self._parts[part.root] = ours
            return False
        self._parts[part.root] = ours and send
        if send:
            self._send_and_pin(part, keep, _QUIET)
        self._sent.add(part.root)
        return True

    def finish(
        self, root: Part, name: str, grown_from: Cid | None, told: Callable[[int, int], None] = lambda *_: None
    ) -> bool:
        """Send the root with what belongs to no part, and pin it under a name. False where the node lacks some part.

        `grown_from` is a root that the node has pinned: then only the difference is walked, and the new pin has the
        old one's name. `told` hears how many blocks and bytes the node has walked so far. Raises as `add`.
        """
        if grown_from is not None:
            self._send(root, pinned=False)
            if self._grow(grown_from, root.root):
                return True
        return self._send_and_pin(root, name, {}, told)

    def pin(self, root: Part, name: str, told: Callable[[int, int], None] = lambda *_: None) -> bool:
        """Pin what the node may hold, under a name; False where something is absent. Raises as `add`."""
        return self._pin(root, name, {}, told)

    def close(self, root: Cid) -> KuboReport:
        """Let go of the parts, for the root is pinned; announce it; sum up. Raises as `add`."""
        for part, ours in self._parts.items():
            if ours and part != root:
                with suppress(RpcFailed, TierFull):  # someone else let go of it first, or the node cannot write
                    self._rpc.json("pin/rm", str(part))
        note = self._announce(root)
        had = len(self._parts.keys() - self._sent)
        return KuboReport(len(self._sent), had, self._sent_bytes, note is None, note)

    def _send_and_pin(
        self, part: Part, name: str, options: dict[str, str], told: Callable[[int, int], None] = lambda *_: None
    ) -> bool:
        """Send and pin; where blocks are gone before they are pinned, once more, pinned while they come.

        A node collects no garbage while it imports what it is to pin, but it gives that pin no name.
        """
        for attempt in range(_SENDS):
            self._send(part, pinned=attempt > 0)
            if self._pin(part, name, options, told):
                return True
        return False

    def _pin(
        self, part: Part, name: str, more: dict[str, str], told: Callable[[int, int], None] = lambda *_: None
    ) -> bool:
        options = {"offline": "true", "progress": "true", **more} | ({"name": name} if name else {})
        walked = 0
        pins: Collection[str] = ()
        try:
            for line in self._rpc.lines("pin/add", str(part.root), options=options):
                if isinstance(told_pins := line.get("Pins"), list):
                    pins = told_pins
                count, size_bytes = (_count(line.get(key)) for key in ("Progress", "Bytes"))
                if count > walked:
                    if part.blocks is not None and count > 2 * part.blocks:
                        raise PeerMisbehaved(f"{self._rpc.name} pins more blocks than {part.root} has")
                    self._rpc.renew()
                    walked = count
                    told(count, size_bytes)
        except RpcFailed as error:
            if not any(words in str(error.data["reason"]) for words in ABSENT):
                raise
            return False
        if str(part.root) not in pins:
            raise PeerMisbehaved(f"{self._rpc.name} does not say that it pinned {part.root}", cid=str(part.root))
        return True

    def _send(self, part: Part, *, pinned: bool) -> None:
        """Send all of a part: a large one by two connections, for a node imports each stream on one processor."""
        sums = list(accumulate(size_bytes for _, size_bytes in part.sizes))
        if pinned or sums[-1] < SPLIT_BYTES:
            self._stream(self._rpc, part, 0, len(sums), pinned=pinned)
            return
        middle = bisect(sums, sums[-1] // 2)
        with closing(self._rpc.another()) as second, ThreadPoolExecutor(1, thread_name_prefix="kubo") as worker:
            rest = worker.submit(self._stream, second, part, middle, len(sums), pinned=False)
            try:
                self._stream(self._rpc, part, 0, middle, pinned=False)
            except BaseException:
                second.end()
                raise
            rest.result()

    def _stream(self, rpc: KuboRpc, part: Part, start: int, stop: int, *, pinned: bool) -> None:
        options = {"pin-roots": "true" if pinned else "false", **_QUIET}
        header = car_header([part.root])
        size_bytes = len(header) + sum(len(car_head(*each)) + each[1] for each in part.sizes[start:stop])
        body = Multipart(_car(header, part.read(start, stop)), size_bytes)
        for _ in rpc.lines("dag/import", options=options, body=body):
            pass
        with self._counting:
            self._sent_bytes += size_bytes

    def _grow(self, old: Cid, new: Cid) -> bool:
        try:
            self._rpc.json("pin/update", str(old), str(new), options={"unpin": "false", "offline": "true"})
        except RpcFailed:  # the old root is not pinned there any more, or the node lacks something
            return False
        return True

    def _announce(self, cid: Cid) -> str | None:
        for command in ("provide/once", "routing/provide"):
            try:
                for _ in self._rpc.lines(command, str(cid)):
                    pass
            except RpcFailed as error:  # offline, without peers, or of a version that has the other command
                if error.data["status"] != _NO_SUCH_COMMAND:
                    return str(error.data["reason"])
            else:
                return None
        return "it has no command for that"


def _car(header: bytes, blocks: Iterable[tuple[Cid, Buffer]]) -> Iterator[Buffer]:
    waiting: list[Buffer] = [header]
    waiting_bytes = len(header)
    for cid, data in blocks:
        head, size_bytes = car_head(cid, len(data)), len(data)
        waiting.append(head)
        waiting_bytes += len(head)
        if size_bytes < _SMALL_BYTES:
            waiting.append(data)
            waiting_bytes += size_bytes
        if size_bytes >= _SMALL_BYTES or waiting_bytes >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, waiting_bytes = [], 0
        if size_bytes >= _SMALL_BYTES:
            yield data
        del data  # or its memory would stay in use while the next is waited for
    if waiting:
        yield b"".join(waiting)


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
