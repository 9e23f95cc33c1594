"""Put graphs on a Kubo node and pin them there, part by part.

A recursive pin is the proof that the node holds all of a part, and what keeps it from the node's garbage collector
until the root is pinned. So each part is pinned first, and only one that cannot be pinned is sent. An upload that was
stopped goes on at the part where it stopped, and one that grows an earlier conversation sends only what is new.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from ...car import car_head, car_header
from ...cid import Buffer, Cid
from ...errors import PeerMisbehaved, RpcFailed
from .rpc import KuboRpc, Multipart

_ABSENT = ("not found", "could not find")


@dataclass(frozen=True)
class Part:
    """A node with everything below it. `blocks` is read only if it must be sent."""

    root: Cid
    blocks: Iterable[tuple[Cid, Buffer]]


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
        self._sent = self._sent_bytes = 0
        self._held: list[Cid] = []

    def add(self, part: Part) -> bool:
        """Make the node hold and pin all of a part; say whether it had to be sent.

        Raises `PeerError`, `AccessDenied`, and what reading the blocks raises.
        """
        sent = not self._has(part.root)
        if sent:
            self._send(part)
            self._pin(part.root)
            self._sent += 1
        self._held.append(part.root)
        return sent

    def finish(self, root: Part, name: str, grown_from: Cid | None) -> KuboReport:
        """Send the root, pin it under a name, let go of the parts, announce it.

        `grown_from` is a root that the node may have pinned before: then only the difference is walked, and the new
        pin has the old one's name. Raises as `add`.
        """
        self._send(root)
        if grown_from is None or not self._grow(grown_from, root.root):
            self._pin(root.root, name)
        for part in self._held:
            if part != root.root:
                with suppress(RpcFailed):  # someone else let go of it first
                    self._rpc.json("pin/rm", str(part))
        note = self._announce(root.root)
        had = len(self._held) - self._sent
        return KuboReport(self._sent, had, self._sent_bytes, note is None, note)

    def _has(self, cid: Cid) -> bool:
        try:
            self._pin(cid)
        except RpcFailed as error:
            if not any(words in str(error.data["reason"]) for words in _ABSENT):
                raise
            return False
        return True

    def _pin(self, cid: Cid, name: str | None = None) -> None:
        options = {"offline": "true", "progress": "true"} | ({"name": name} if name else {})
        lines = list(self._rpc.lines("pin/add", str(cid), options=options))
        if str(cid) not in (lines[-1].get("Pins") or () if lines else ()):
            raise PeerMisbehaved(f"{self._rpc.name} does not say that it pinned {cid}", cid=str(cid))

    def _send(self, part: Part) -> None:
        body = Multipart(self._car(part))
        for _ in self._rpc.lines("dag/import", options={"pin-roots": "false"}, body=body):
            pass

    def _car(self, part: Part) -> Iterator[Buffer]:
        header = car_header([part.root])
        self._sent_bytes += len(header)
        yield header
        for cid, data in part.blocks:
            head = car_head(cid, len(data))
            self._sent_bytes += len(head) + len(data)
            yield head
            yield data

    def _grow(self, old: Cid, new: Cid) -> bool:
        try:
            self._rpc.json("pin/update", str(old), str(new), options={"unpin": "false", "offline": "true"})
        except RpcFailed:  # the old root is not pinned there: walk all of the new one
            return False
        return True

    def _announce(self, cid: Cid) -> str | None:
        try:
            for _ in self._rpc.lines("provide/once", str(cid)):
                pass
        except RpcFailed as error:  # offline, without peers, or older than the command
            return str(error.data["reason"])
        return None
