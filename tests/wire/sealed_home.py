"""A home that is served with a door: two conversations sealed for a reader, and one that is public."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from cyberkv.cybergraph.access import ContentKey, Identity, open_grant
from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.access.proof import Reader
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.door import Door
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Grant, Sealed
from cyberkv.cybergraph.peers import Peer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import FetchReport
from cyberkv.cybergraph.transfer.fetch_sealed import fetch_sealed, find_ring
from cyberkv.cybergraph.transfer.sealed import SealedReport, publish_sealed
from tests.access.sealed import ISSUER, OTHER, READER
from tests.wire.conftest import Served, running
from tests.wire.synthetic import record

NOW = "2026-01-01T00:00:00Z"
MORE = tuple(Identity(bytes([number]) * 32) for number in (11, 12, 13))
"""Readers enough, with the issuer, for a ring."""


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    now_s: int = 1_800_000_000

    def __call__(self) -> int:
        return self.now_s


@dataclass
class Home:
    """What is published, and where."""

    store: MemoryStore
    index: Index
    clock: Clock = field(default_factory=Clock)

    def seal(
        self, seed: str, *, blocks: int = 4, readers: Sequence[Identity] = (READER,), ring: bool = False
    ) -> "SealedTalk":
        """Seal and publish a conversation of its own lineage."""
        lineage = Lineage.begin(seed, ISSUER.public().signing, NOW, alg=1, kem="x25519")
        for number, reader in enumerate(readers):
            lineage = lineage.with_reader(f"reader {number}", reader.public())
        return self.publish(record(self.store, blocks=blocks, seed=seed), lineage, ring=ring)

    def publish(self, plain: Cid, lineage: Lineage, *, ring: bool = False) -> "SealedTalk":
        lineage, report = publish_sealed(self.store, self.index, plain, lineage, ISSUER, ring=ring)
        return SealedTalk(self, plain, lineage, report)

    def show(self, seed: str) -> Cid:
        """Publish a conversation for everybody."""
        root = record(self.store, blocks=3, seed=seed)
        self.index.publish(root, closure(self.store, root))
        return root

    def content(self) -> Published:
        return Published(self.store, self.index)

    def door(self, audience: str = "") -> Door:
        return Door(self.content(), self.clock, audience)


@dataclass
class SealedTalk:
    """One sealed conversation."""

    home: Home
    plain: Cid
    lineage: Lineage
    report: SealedReport

    @property
    def root(self) -> Cid:
        return self.report.root

    @property
    def sealed(self) -> Sealed:
        return Sealed.decode(self.home.store.get(self.root))

    @property
    def grant(self) -> Grant:
        return Grant.decode(self.home.store.get(self.report.grant))

    def withheld(self) -> set[Cid]:
        return {*self.report.cids} - {self.root, self.report.grant} - {self.report.ring}

    def rotated(self) -> "SealedTalk":
        """Publish it again in a new epoch, with the same readers."""
        return self.home.publish(self.plain, replace(self.lineage.rotated(NOW)))

    def prover(self, reader: Identity = READER) -> Reader:
        return Reader.of_key(self.root, self.grant, open_grant(self.grant, reader), self.home.clock)

    def fetch(
        self, into: MemoryStore, index: Index, peers: Sequence[Peer], reader: Identity = READER, *, ring: bool = False
    ) -> FetchReport:
        """Fetch it as a reader does, who proves access where that is wanted."""

        def prove(grant: Grant, key: ContentKey) -> Reader:
            if ring:
                return Reader.of_ring(self.root, grant, find_ring(grant, peers), reader, self.home.clock)
            return Reader.of_key(self.root, grant, key, self.home.clock)

        return fetch_sealed(into, index, self.root, peers, lambda _, grant: open_grant(grant, reader), prove=prove)


@dataclass(frozen=True)
class Template:
    """A home with one sealed conversation, made once: each test gets a copy."""

    folder: Path
    talk: SealedTalk

    @classmethod
    def make(cls, folder: Path, *, blocks: int) -> "Template":
        with Index(folder) as index:
            return cls(folder, Home(MemoryStore(), index).seal("a", blocks=blocks))

    @contextmanager
    def copied(self, folder: Path) -> Iterator[SealedTalk]:
        store = MemoryStore()
        store.put_many((cid, self.talk.home.store.get(cid)) for cid in self.talk.home.store.cids())
        with Index(shutil.copytree(self.folder, folder)) as index:
            yield replace(self.talk, home=Home(store, index))


@dataclass
class Switch:
    """An application that can be exchanged while it is served: a restart that keeps the port."""

    app: ASGIApp
    later: ASGIApp | None = None
    """What takes its place after `left` more requests."""
    left: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.later is not None and self.left == 0:
            self.app, self.later = self.later, None
        self.left -= 1
        await self.app(scope, receive, send)


@contextmanager
def guarding(home: Home, door: Door | None = None) -> Iterator[tuple[Served, Door, Switch]]:
    """Serve a home behind a door that goes by the server's URL."""
    door = door or home.door()
    switch = Switch(build_app(home.content(), None, door))
    with running(switch) as served:
        door.audience = door.audience or served.url
        yield served, door, switch


__all__ = ["ISSUER", "MORE", "OTHER", "READER", "Clock", "Home", "SealedTalk", "Template", "guarding"]
