"""Going on while blocks come from the store: as if they had been there, whatever does not come and wherever it ends."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Condition

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.prefix import prefix_key
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.verdict import Tier, Verdict
from cyberkv.runtime.checkpoint import append_recorded, checkpoint
from cyberkv.runtime.cuda import reference
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.pool import BlockPool
from tests.gpu.engines import Engines, Made, changed
from tests.numerics.together import TOKENS, State

SIZE, BLOCKS, LAYERS = 16, 3, 3
KNOWN, TAIL, MORE = TOKENS[: SIZE * BLOCKS], TOKENS[SIZE * BLOCKS :][:5], TOKENS[400:421]
EVERYTHING = [*KNOWN, *TAIL, *MORE]
Way = Callable[[Engine, "World"], Live]


class Watched(MemoryStore):
    """Says what it is asked for, fails where it is told to, and waits for others."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.fails_at = 0
        self.failure: BaseException = KeyboardInterrupt()
        self.before: Callable[[Sequence[Cid]], None] = lambda _: None

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        self.before(cids)
        self.reads += 1
        if self.reads == self.fails_at:
            raise self.failure
        super().get_into(cids, out)


class World:
    """A conversation that was recorded, and engines that have nothing of it but the store and the index."""

    def __init__(self, engines: Engines, family: str = "llama") -> None:
        self.engines, self.family, self.store = engines, family, Watched()
        self.index, self.homes = self.engines.index(), 0
        self.folder = engines.folder / f"{family}-{engines.homes}"
        self.origin = engines.device(family, by_layer=True, beside=self).engine
        live = Live(self.origin)
        live.append(KNOWN)
        live.append(TAIL)
        self.root, self.blocks = checkpoint(live, title="kept", created="2026-01-01T00:00:00Z"), list(live.blocks)
        live.close()
        self.bytes, self.entries = dict(self.store._blocks), list[IndexEntry]()
        for cid in self.blocks:
            node, domain = Block.decode(self.store.get(cid)), self.origin.domain.name
            prefix = prefix_key(node.model, self.entries[-1].prefix if self.entries else None, node.tokens)
            self.entries.append(IndexEntry(prefix, cid, node.prev, node.model, domain))
        undisturbed = Live(engines.device(family, by_layer=True).engine)
        undisturbed.append(EVERYTHING)
        self.expected = State.of(undisturbed)

    def made(self, **options: object) -> Made:
        """An engine over the store as it was, and an index of its own that knows what is in it."""
        self.heal()
        self.index.close()
        self.index, self.homes = Index(self.folder / str(self.homes)), self.homes + 1
        self.index.add_blocks(self.entries)
        return self.engines.device(self.family, by_layer=True, beside=self, **options)  # type: ignore[arg-type]

    def leaf(self, block: int, layer: int) -> Cid:
        return Block.decode(self.store.get(self.blocks[block])).kv[layer]

    def heal(self) -> None:
        self.store._blocks = dict(self.bytes)
        self.store.reads = self.store.fails_at = 0


@pytest.fixture(scope="module")
def world(engines: Engines) -> Iterator[World]:
    world = World(engines)
    yield world
    world.index.close()


def recorded(engine: Engine, world: World) -> Live:
    live = Live(engine)
    append_recorded(live, world.root, MORE)
    return live


def prompted(engine: Engine, _: World) -> Live:
    live = Live(engine)
    live.append(EVERYTHING)
    return live


def tailed(engine: Engine, _: World) -> Live:
    """A tail that was computed here, before anybody knew what follows."""
    live = Live(engine)
    live.append(KNOWN[:5])
    live.append(EVERYTHING[5:])
    return live


WAYS: dict[str, Way] = {"recorded": recorded, "prompted": prompted, "tailed": tailed}


def is_clean(engine: Engine, *lives: Live) -> bool:
    rows = {row for live in lives for row in live.sequence.table}
    assert engine.residency.check_integrity() == engine.pool.check_integrity() == []
    assert all(live.sequence.coming is None for live in lives)
    assert not engine.residency._flights
    return engine.pool.used_blocks == len(rows)


class Order:
    """Which layer's leaves were read and which layer was computed, one after the other."""

    def __init__(self, world: World, *, waits: bool) -> None:
        self.seen: list[tuple[str, int]] = []
        self.layers = {world.leaf(block, layer): layer for block in range(BLOCKS) for layer in range(LAYERS)}
        self.changed, self.waits, self.computed = Condition(), waits, 0
        self.functions = changed(append_rows=self.append_rows)

    def read(self, cids: Sequence[Cid]) -> None:
        if (layer := self.layers.get(cids[0])) is not None:
            with self.changed:
                if self.waits:
                    assert self.changed.wait_for(lambda: self.computed >= layer, timeout=20)
                self.seen.append(("read", layer))

    def append_rows(self, *parts: object) -> None:
        with self.changed:
            self.seen.append(("computed", self.computed % LAYERS))
            self.computed += 1
            self.changed.notify_all()
        reference.append_rows(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [recorded, pytest.param(prompted, marks=pytest.mark.slow)])
def test_the_first_layers_are_computed_before_the_last_have_come(
    way: Way, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where the pool cannot wait layer by layer, all is read before anything is computed."""
    order, eager = Order(world, waits=True), Order(world, waits=False)
    monkeypatch.setattr(world.store, "before", order.read)
    live = way(world.made(functions=order.functions).engine, world)
    assert order.seen[: 2 * LAYERS] == [(what, layer) for layer in range(LAYERS) for what in ("read", "computed")]
    assert State.of(live).same(world.expected)
    made = world.made(functions=eager.functions)
    with monkeypatch.context() as patch:
        patch.setattr(type(made.engine.pool), "begin", lambda *_: None)
        patch.setattr(world.store, "before", eager.read)
        patch.setattr(type(made.engine.pool), "fill", at_once)
        way(made.engine, world)
    assert eager.seen[: LAYERS + 1] == [*(("read", layer) for layer in range(LAYERS)), ("computed", 0)]


def at_once(pool: BlockPool, source: object, leaves: object, rows: Sequence[int]) -> None:
    with pool.moves.load(source, leaves, rows) as loading:  # type: ignore[attr-defined]
        assert loading.finish() == len(rows)


@pytest.mark.parametrize(
    "way", ["tailed", *(pytest.param(way, marks=pytest.mark.slow) for way in ("recorded", "prompted"))]
)
def test_it_is_as_if_they_had_been_there(way: str, world: World) -> None:
    """The control: other tokens after the same beginning."""
    engine = world.made().engine
    live = WAYS[way](engine, world)
    assert State.of(live).same(world.expected)
    assert live.counts.misses == []
    assert [each.tier for each in live.counts.executed] == [Tier.L2] * BLOCKS + [None]
    assert live.counts.tokens_reused + live.counts.tokens_computed == len(live.tokens)
    assert engine.residency.log.blocks[Tier.L2, Tier.L0] == BLOCKS
    assert is_clean(engine, live)
    other = Live(engine)
    other.append([*KNOWN, *TAIL, *MORE[::-1]])
    assert [each.tier for each in other.counts.executed if each.tier is not None] == [Tier.L0] * BLOCKS
    assert not State.of(other).same(world.expected)
    assert is_clean(engine, live, other)


def lose(store: MemoryStore, leaf: Cid) -> None:
    store.delete_many([leaf])


def corrupt(store: MemoryStore, leaf: Cid) -> None:
    store._blocks[leaf] = bytes([store.get(leaf)[0] ^ 1]) + store.get(leaf)[1:]


def places() -> list[object]:
    """Each leaf in each way; over the three ways it is lost as well as damaged, and in each way others are."""
    every = [(way, block, layer, (lose, corrupt)[(number + block + layer) % 2])
             for number, way in enumerate(WAYS) for block in range(BLOCKS) for layer in range(LAYERS)]  # fmt: skip
    few = (("recorded", 1, 2, corrupt), ("tailed", 1, 1, lose))
    assert {*few} <= {*every}
    return [pytest.param(*each, marks=() if each in few else pytest.mark.slow) for each in every]


@pytest.mark.parametrize(("way", "block", "layer", "spoil"), places())
def test_what_does_not_come_is_one_miss_and_the_rest_is_computed(
    way: str, block: int, layer: int, spoil: Callable[[MemoryStore, Cid], None], world: World
) -> None:
    """Also where that shows when two layers were computed. The control: the blocks before it are used."""
    engine, leaf = world.made().engine, world.leaf(block, layer)
    spoil(world.store, leaf)
    live = WAYS[way](engine, world)
    assert State.of(live).same(world.expected)
    assert [(miss.position_start, miss.cid) for miss in live.counts.misses] == [(block * SIZE, str(leaf))]
    verdicts = [each.verdict for each in live.counts.executed]
    assert verdicts == [Verdict.FAULT] * block + [Verdict.RECOMPUTE] * (len(live.blocks) - block)
    assert [each.index for each in live.counts.executed] == list(range(len(live.blocks)))
    carried = 5 if way == "tailed" else 0  # these were computed before
    assert live.counts.tokens_reused == max(0, block * SIZE - carried)
    assert live.counts.tokens_reused + live.counts.tokens_computed == len(live.tokens)
    assert is_clean(engine, live)
    assert world.store.get(leaf) == world.bytes[leaf], "it was computed, and is whole again"
    live.close()
    assert is_clean(engine)


LAYER_LAUNCHES = 9
STOPS = [
    # One way after the other, shifted by layer: each is stopped in each layer, and at each launch that a layer makes.
    *(
        ("launch", layer * LAYER_LAUNCHES + at, [*WAYS][(layer + at) % len(WAYS)])
        for layer in range(LAYERS)
        for at in range(1, LAYER_LAUNCHES + 1)
    ),
    *(("read", at, way) for at in range(1, 4) for way in WAYS),
    *(("chunk", 0, way) for way in WAYS),
]
FEW = [("launch", 9, "recorded"), ("read", 2, "tailed"), ("chunk", 0, "prompted")]


@pytest.mark.parametrize(
    ("what", "at", "way"),
    [pytest.param(*stop, marks=() if stop in FEW else pytest.mark.slow) for stop in STOPS],
)
def test_stopped_anywhere_it_holds_what_it_held_or_what_had_come(what: str, at: int, way: str, world: World) -> None:
    """By a launch, by a read of the store or between chunks. The control: what follows is as if nothing had been."""
    made = world.made()
    live = Live(made.engine)
    if way == "tailed":
        live.append(KNOWN[:5])
    held = State.of(live) if live.tokens else None
    if what == "launch":
        made.device.fails_at, made.device.failure = made.device.launches + at, KeyboardInterrupt()
    elif what == "read":
        world.store.fails_at = at
    with pytest.raises(KeyboardInterrupt) if what != "launch" else suppress(KeyboardInterrupt):
        if way == "recorded":
            append_recorded(live, world.root, MORE, stopping if what == "chunk" else None)
        else:
            live.append(EVERYTHING[len(live.tokens) :], stopping if what == "chunk" else None)
    world.store.fails_at = made.device.fails_at = 0
    assert is_clean(made.engine, live)
    before, after = len(held.tokens) if held else 0, {"read": (), "launch": (len(KNOWN), len(EVERYTHING))}
    assert len(live.tokens) in (before, *after.get(what, (len(EVERYTHING),)))
    assert live.tokens == EVERYTHING[: len(live.tokens)]
    if held and len(live.tokens) == before:
        assert State.of(live).same(held)
    live.append(EVERYTHING[len(live.tokens) :])
    assert State.of(live).same(world.expected)
    assert live.counts.tokens_reused <= len(KNOWN)
    live.close()
    assert is_clean(made.engine)


def stopping(_done: int, _total: int) -> None:
    raise KeyboardInterrupt


def test_a_disk_that_fails_is_an_error_and_holds_nothing(world: World) -> None:
    for at in (1, 2, 3):
        made = world.made()
        live = Live(made.engine)
        world.store.fails_at, world.store.failure = at, OSError("the disk is gone")
        with pytest.raises(OSError, match="gone"):
            append_recorded(live, world.root, MORE)
        assert (live.tokens, live.blocks) == ([], [])
        assert is_clean(made.engine, live)
    world.store.failure = KeyboardInterrupt()


@pytest.fixture(scope="module")
def windowed(engines: Engines) -> Iterator[Callable[[str], World]]:
    """Worlds of families with windows, each made once."""
    worlds: dict[str, World] = {}

    def find(family: str) -> World:
        if family not in worlds:
            worlds[family] = World(engines, family)
        return worlds[family]

    yield find
    for world in worlds.values():
        world.index.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["smollm3-window", "mistral"])
@pytest.mark.parametrize("lost", [None, *range(BLOCKS)])
def test_windows_too(family: str, lost: int | None, windowed: Callable[[str], World]) -> None:
    """Where no layer reads the first blocks, they are not left on their way; and what is cut off is computed."""
    world = windowed(family)
    for way in WAYS.values():
        engine = world.made().engine
        if lost is not None:
            lose(world.store, world.leaf(lost, 2))
        live = way(engine, world)
        assert [miss.position_start for miss in live.counts.misses] == ([] if lost is None else [lost * SIZE])
        assert live.blocks[:BLOCKS] == world.blocks
        assert live.next_logits().equal(world.expected.logits)
        assert live.counts.tokens_reused + live.counts.tokens_computed == len(EVERYTHING)
        live.close()
        assert is_clean(engine)
