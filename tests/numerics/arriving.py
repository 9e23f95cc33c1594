"""A conversation at a peer that does as it is told, and homes that go on from it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from threading import enumerate as threads
from typing import Any

import torch

from cyberkv.cybergraph.chain import missing
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import PeerUnreachable
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.peers.base import Peer, not_held
from cyberkv.cybergraph.staging import Room
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.canonical import Domain
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel
from cyberkv.runtime.prefetch import Arrival, append_arriving

TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(16 * 9 + 5)]
"""Nine blocks and a tail."""
MORE = [(7 * i * i + 3 * i + 1) % 250 for i in range(40)]
BLOCKS, GROUPS = 9, 3


class Remote(Peer):
    """A peer that gives the blocks of a store one by one, tells which, and fails where it is told to."""

    name = "remote"

    def __init__(self, blocks: MemoryStore) -> None:
        self.blocks = blocks
        self.given: list[Cid] = []
        self.lacks: set[Cid] = set()
        self.flips: set[Cid] = set()
        self.before: Callable[[Cid], None] = lambda _: None
        self.aborted = Event()

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        for cid in cids:
            if cid in self.lacks:
                continue
            self.before(cid)
            data = self.blocks.get(cid)
            self.given.append(cid)
            yield cid, bytes([data[0] ^ 1]) + data[1:] if cid in self.flips else data
        if absent := self.lacks.intersection(cids):
            raise not_held(self.name, sorted(absent))

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.abort()

    def wait(self) -> None:
        """Be silent for as long as somebody waits."""
        self.aborted.wait(120)
        raise PeerUnreachable("gone", peer=self.name)


class World:
    """A conversation that one home has recorded, what going on from it gives, and homes that have nothing yet."""

    def __init__(self, loaded: LoadedModel, domain: Domain | None, folder: Path, stack: ExitStack) -> None:
        identity = replace(loaded.identity, layers_per_leaf=1)
        self.loaded = replace(loaded, identity=identity, cid=identity.cid(), geometry=Geometry.from_model(identity))
        self.domain, self.folder, self.stack, self.homes = domain, folder, stack, count()
        origin = self.home()
        self.domain = origin.domain
        self.remote = Remote(origin.store)  # type: ignore[arg-type]
        live = Live(origin)
        live.append(TOKENS)
        self.root = checkpoint(live, title="story", created="")
        self.blocks = list(live.blocks)
        live.close()
        self.nodes = [Block.decode(origin.store.get(cid)) for cid in self.blocks]
        self.leaves = {self.leaf(block, group): (block, group) for group in range(GROUPS) for block in range(BLOCKS)}
        plain = resume(origin, self.root)
        plain.append(MORE)
        self.expected, self.expected_blocks = plain.next_logits(), list(plain.blocks)
        plain.close()

    def home(self) -> Engine:
        index = self.stack.enter_context(Index(self.folder / str(next(self.homes))))
        return build_engine(self.loaded, MemoryStore(), index, capacity_tokens=2048, domain=self.domain)

    def leaf(self, block: int, group: int) -> Cid:
        return self.nodes[block].kv[group]

    def peer(self) -> Remote:
        return Remote(self.remote.blocks)

    def go_on(self, here: Engine, peer: Remote, tokens: Sequence[int] = MORE, **options: Any) -> Live:
        watch, root = options.pop("watch", None), options.pop("root", self.root)
        arrival = Arrival(here.store, here.index, root, [peer], **options)
        live = Live(here)
        try:
            arrival.watch = watch or arrival.watch
            arrival.open()
            append_arriving(live, arrival, tokens)
        finally:
            arrival.close()
            assert live.sequence.coming is None
            assert here.residency.check_integrity() == []
            rows = {row for row in live.sequence.table if row < here.pool.capacity_blocks}
            assert here.pool.used_blocks == len(rows)
            assert not [each for each in threads() if each.name in ("arrival", "landing_0")]
        return live

    def check(self, live: Live) -> None:
        """It is what the ordinary way gives, and so is what the home holds of it."""
        assert torch.equal(live.next_logits(), self.expected)
        assert live.blocks == self.expected_blocks
        assert live.tokens == TOKENS + MORE
        root = checkpoint(live, title="after", created="")
        live.close()
        assert missing(live.engine.store, root) == []
        again = resume(live.engine, root)
        assert torch.equal(again.next_logits(), self.expected)
        assert again.counts.misses == []
        again.close()
        assert live.engine.pool.used_blocks == 0

    def order(self, peer: Remote) -> list[tuple[int, int]]:
        """In which order leaves were given: block and group."""
        return [self.leaves[cid] for cid in peer.given if cid in self.leaves]
