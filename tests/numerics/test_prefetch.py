"""Going on from a conversation while it comes: bit-equal to the ordinary way, whatever happens on the way."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.chain import build_root, load_root, missing
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import IdentityMismatch, OutOfRange, PeerUnreachable, TierFull
from cyberkv.cybergraph.identity import Difference
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.staging import Room
from cyberkv.cybergraph.transfer import fetch
from cyberkv.cybergraph.verdict import Tier, Verdict
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel
from cyberkv.runtime.prefetch import Arrival, append_arriving
from tests.numerics.arriving import BLOCKS, GROUPS, MORE, Remote, World
from tests.numerics.poison import forge


@pytest.fixture(scope="module")
def world_of(
    load_tiny: Callable[..., LoadedModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], World]]:
    made: dict[str, World] = {}
    with ExitStack() as stack:

        def world(family: str = "llama") -> World:
            if family not in made:
                made[family] = World(load_tiny(family), None, tmp_path_factory.mktemp(family), stack)
            return made[family]

        yield world


@pytest.fixture
def world(world_of: Callable[..., World]) -> World:
    return world_of("llama")


@pytest.mark.parametrize("family", ["llama", "qwen2-window", "smollm3-window", "mistral"])
def test_it_is_the_ordinary_way_in_another_order(world_of: Callable[..., World], family: str) -> None:
    world = world_of(family)
    here, peer = world.home(), world.peer()
    live = world.go_on(here, peer)
    assert live.counts.misses == []
    assert (live.counts.tokens_reused, live.counts.tokens_computed) == (16 * BLOCKS, 5 + len(MORE))
    assert [each.tier for each in live.counts.executed[:BLOCKS]] == [Tier.L3] * BLOCKS
    assert [each.index for each in live.counts.executed] == list(range(len(live.blocks)))
    assert here.pace.prefill_tokens_s is None  # waiting says nothing about computing
    assert sorted(world.order(peer)) == sorted(world.leaves.values())  # each once
    assert missing(here.store, world.root) == []
    assert here.store.has(world.root)
    fetched = world.home()
    fetch(fetched.store, fetched.index, world.root, [world.peer()])
    for cid in world.blocks:
        assert here.index.beside(cid) == fetched.index.beside(cid) != []
    world.check(live)
    control = world.go_on(here, peer, [*MORE[:-1], MORE[-1] + 1])
    assert not torch.equal(control.next_logits(), world.expected)
    control.close()


def test_leaves_come_in_the_order_in_which_layers_need_them(world_of: Callable[..., World]) -> None:
    places = [(block, group) for group in range(GROUPS) for block in range(BLOCKS)]
    world = world_of("llama")
    peer = world.peer()
    world.go_on(world.home(), peer).close()
    assert world.order(peer) == places
    mixed = world_of("qwen2-window")  # layer 0 sees everything, the others eight tokens
    peer = mixed.peer()
    mixed.go_on(mixed.home(), peer).close()
    far = [place for place in places if place[1] > 0 and place[0] < BLOCKS - 2]
    assert mixed.order(peer) == [place for place in places if place not in far] + far


def test_the_first_layer_attends_before_the_last_has_come(world: World) -> None:
    here, peer, attended = world.home(), world.peer(), Event()
    held: list[bool] = []

    def before(cid: Cid) -> None:
        if world.leaves.get(cid, (0, 0))[1] == GROUPS - 1:
            held.append(attended.wait(120))

    peer.before = before
    arrival = Arrival(here.store, here.index, world.root, [peer])
    arrival.open()
    live, taken = Live(here), list[int]()
    attend = live.sequence.attend

    def watched(layer: int, *args: Any) -> Any:
        result = attend(layer, *args)
        taken.append(layer)
        attended.set()
        return result

    live.sequence.attend = watched  # type: ignore[method-assign]
    append_arriving(live, arrival, MORE)
    assert all(held)
    assert len(held) == BLOCKS
    assert taken[:GROUPS] == list(range(GROUPS))
    del live.sequence.attend
    world.check(live)


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("block", [0, 4, BLOCKS - 1])
def test_a_corrupt_leaf_is_never_used(world: World, block: int, group: int) -> None:
    here, peer = world.home(), world.peer()
    bad = world.leaf(block, group)
    peer.flips.add(bad)
    live = world.go_on(here, peer)
    [miss] = live.counts.misses
    assert (miss.cid, "do not hash" in miss.reason) == (str(bad), True)
    # Who lies is asked no more: kept is what had come whole by then.
    kept = 0 if group < GROUPS - 1 else block
    assert (miss.position_start, live.counts.tokens_reused) == (16 * kept, 16 * kept)
    assert not here.store.has(world.root)
    world.check(live)


def test_rows_of_a_corrupt_leaf_would_show(world: World) -> None:
    """The control of the test above."""
    here = world.home()
    arrival = Arrival(here.store, here.index, world.root, [world.peer()])
    arrival.open()
    live = Live(here)
    take = arrival.take

    def damaging(layer: int) -> tuple[int, int] | None:
        span = take(layer)
        if span is not None and layer == 1:
            here.pool.leaves(live.sequence.table[4])[1][2] ^= 1
        return span

    arrival.take = damaging  # type: ignore[method-assign]
    append_arriving(live, arrival, MORE)
    assert not torch.equal(live.next_logits(), world.expected)
    live.close()


def test_a_missing_leaf_is_one_miss_and_the_rest_comes(world: World) -> None:
    here, peer = world.home(), world.peer()
    peer.lacks.add(world.leaf(6, 1))
    live = world.go_on(here, peer)
    [miss] = live.counts.misses
    assert (miss.position_start, miss.cid) == (16 * 6, str(world.leaf(6, 1)))
    assert live.counts.tokens_reused == 16 * 6
    assert {(block, 2) for block in range(6)} <= {*world.order(peer)}  # what was left to need still came
    assert [each.verdict for each in live.counts.executed[:7]] == [*[Verdict.FAULT] * 6, Verdict.RECOMPUTE]
    world.check(live)


@pytest.mark.parametrize("family", ["qwen2-window", "mistral"])
@pytest.mark.parametrize("place", [(8, 0), (2, 2)])
def test_windows_and_a_missing_leaf(world_of: Callable[..., World], family: str, place: tuple[int, int]) -> None:
    """Also one that no layer reads: it is part of the conversation that is recorded."""
    world = world_of(family)
    here, peer = world.home(), world.peer()
    peer.lacks.add(world.leaf(*place))
    live = world.go_on(here, peer)
    [miss] = live.counts.misses
    assert miss.cid == str(world.leaf(*place))
    assert miss.position_start <= 16 * place[0]
    assert live.counts.tokens_reused == miss.position_start
    world.check(live)


@given(st.sets(st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, GROUPS - 1)), max_size=4), st.booleans())
@settings(max_examples=15, deadline=None)
def test_what_is_kept_ends_at_the_first_block_that_lacks_something(
    world_of: Callable[..., World], lacking: set[tuple[int, int]], windows: bool
) -> None:
    world = world_of("qwen2-window" if windows else "llama")
    peer = world.peer()
    peer.lacks |= {world.leaf(*place) for place in lacking}
    live = world.go_on(world.home(), peer)
    assert live.counts.tokens_reused == 16 * min((block for block, _ in lacking), default=BLOCKS)
    assert bool(live.counts.misses) == bool(lacking)
    world.check(live)


NOT_ASKED_FOR = Cid.of(b"", "raw", "blake3")
LIES: dict[str, Callable[[Cid, bytes, Remote], Iterator[tuple[Cid, bytes]]]] = {
    "cut": lambda cid, data, _: iter([(cid, data[:-1])]),
    "longer": lambda cid, data, _: iter([(cid, data + b"x")]),
    "empty": lambda cid, _, __: iter([(cid, b"")]),
    "nothing": lambda _, __, ___: iter(()),
    "another": lambda cid, _, peer: iter([(cid, peer.blocks.get(peer.given[-2]))]),
    "not asked for": lambda _, __, ___: iter([(NOT_ASKED_FOR, b"")]),
    "twice": lambda cid, data, _: iter([(cid, data), (cid, data)]),
    "for ever": lambda cid, data, peer: iter(lambda: peer.aborted.is_set() or (cid, data), True),
}


class Liar(Remote):
    """A peer that says the truth but for one leaf."""

    lie: tuple[Cid, str]

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        for cid, data in super().read_many(cids, room):
            yield from LIES[self.lie[1]](cid, bytes(data), self) if cid == self.lie[0] else [(cid, data)]


@pytest.mark.parametrize("how", LIES)
def test_whatever_a_peer_says_the_answer_is_right(how: str, world: World) -> None:
    here, peer, ticks = world.home(), Liar(world.remote.blocks), count()
    peer.lie = world.leaf(4, 1), how
    live = world.go_on(here, peer, patience_s=20.0, clock_s=lambda: float(next(ticks)))
    assert bool(live.counts.misses) == (how != "twice")
    world.check(live)


@pytest.mark.parametrize("after", [0, BLOCKS + 3, 2 * BLOCKS, 3 * BLOCKS - 1])
def test_a_peer_that_dies_costs_what_had_not_come_and_fetch_goes_on_from_there(world: World, after: int) -> None:
    here, peer = world.home(), world.peer()

    def before(cid: Cid) -> None:
        if cid in world.leaves and len(world.order(peer)) >= after:
            raise PeerUnreachable("the line is dead", peer=peer.name)

    peer.before = before
    live = world.go_on(here, peer)
    [miss] = live.counts.misses
    assert "the line is dead" in miss.reason
    assert miss.position_start == 16 * max(0, after - 2 * BLOCKS)
    came = set(world.order(peer))
    assert len(came) == after
    assert here.store.missing(leaf for leaf, place in world.leaves.items() if place in came) == []
    world.check(live)
    sound = world.peer()
    fetch(here.store, here.index, world.root, [sound])
    assert came.isdisjoint(world.order(sound))
    assert here.store.has(world.root)


def test_what_comes_too_late_is_computed(world: World) -> None:
    here, peer, ticks = world.home(), world.peer(), count()
    peer.before = lambda cid: peer.wait() if world.leaves.get(cid, (0, 0)) == (3, 1) else None
    live = world.go_on(here, peer, patience_s=6.0, clock_s=lambda: float(next(ticks)))
    [miss] = live.counts.misses
    assert (miss.position_start, "nothing came for 6 s" in miss.reason) == (0, True)
    world.check(live)


@pytest.mark.parametrize("after", [0, 1, BLOCKS, 2 * BLOCKS + 1, 3 * BLOCKS - 1])
def test_cancelled_at_any_step_it_is_as_before_and_what_came_is_kept(world: World, after: int) -> None:
    here, peer = world.home(), world.peer()
    peer.before = lambda cid: peer.wait() if cid in world.leaves and len(world.order(peer)) >= after else None

    def watch(done: int, total: int) -> None:
        assert total == 3 * BLOCKS * here.geometry.leaf_bytes(0)
        if done == after * here.geometry.leaf_bytes(0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.go_on(here, peer, watch=watch)
    assert here.pool.used_blocks == 0
    assert here.store.missing(cid for cid in peer.given if cid in world.leaves) == []
    assert not here.store.has(world.root)
    sound = world.peer()
    world.check(world.go_on(here, sound))
    assert set(world.order(peer)).isdisjoint(world.order(sound))


def test_stopped_after_all_has_come_the_conversation_holds_whole_chunks(world: World) -> None:
    here, live = world.home(), None
    arrival = Arrival(here.store, here.index, world.root, [world.peer()])
    arrival.open()
    live = Live(here)

    def progress(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append_arriving(live, arrival, MORE, progress)
    world.check(live)


def test_a_full_store_is_said_and_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world.home()

    def full(*_args: object, **_options: object) -> int:
        raise TierFull("no space left")

    arrival = Arrival(here.store, here.index, world.root, [world.peer()])
    arrival.open()
    live = Live(here)
    monkeypatch.setattr(here.store, "put_many", full)
    with pytest.raises(TierFull):
        append_arriving(live, arrival, MORE)
    assert (live.tokens, here.pool.used_blocks) == ([], 0)
    monkeypatch.undo()
    peer = world.peer()
    with pytest.raises(TierFull, match="bytes more") as caught:
        world.go_on(here, peer, free_bytes=100)
    assert caught.value.data["needed_bytes"] == len(world.leaves) * here.geometry.leaf_bytes(0)
    assert world.order(peer) == []
    assert here.pool.used_blocks == 0


def test_what_is_here_is_not_asked_for_and_damage_is_mended(world: World) -> None:
    here, peer = world.home(), world.peer()
    some = {leaf: place for leaf, place in world.leaves.items() if sum(place) % 2}
    for leaf in some:
        here.store.put(leaf, world.remote.blocks.get(leaf))
    bad = next(iter(some))
    here.store._blocks[bad] = b"x" + here.store.get(bad)[1:]  # type: ignore[attr-defined]
    live = world.go_on(here, peer)
    assert set(world.order(peer)) == {*world.leaves.values()} - {*some.values()} | {some[bad]}
    assert live.counts.misses == []
    world.check(live)


def test_blocks_in_the_pool_are_shared(world: World) -> None:
    here, peer = world.home(), world.peer()
    one = world.go_on(here, peer)
    peer.given.clear()
    other = Live(here)
    arrival = Arrival(here.store, here.index, world.root, [peer])
    arrival.open()
    append_arriving(other, arrival, MORE)
    assert peer.given == []
    assert other.sequence.table[:BLOCKS] == one.sequence.table[:BLOCKS]
    assert [each.tier for each in other.counts.executed[:BLOCKS]] == [Tier.L0] * BLOCKS
    one.close()
    world.check(other)


def test_refused_before_anything_moves(world_of: Callable[..., World]) -> None:
    world, other = world_of("llama"), world_of("qwen2-window")
    peer = world.peer()
    arrival = Arrival(other.home().store, other.home().index, world.root, [peer])
    arrival.open()
    with pytest.raises(IdentityMismatch):
        append_arriving(Live(other.home()), arrival, MORE)
    arrival.close()
    with pytest.raises(OutOfRange):
        world.go_on(world.home(), peer, [1] * 2000)
    with pytest.raises(OutOfRange, match="vocabulary"):
        world.go_on(world.home(), peer, [1_000_000])
    assert world.order(peer) == []


@pytest.mark.parametrize("here_before", [False, True])
@pytest.mark.parametrize(("block", "group"), [(0, 2), (4, 0), (8, 1)])
def test_numbers_that_are_not_finite_end_reuse_there(world: World, block: int, group: int, here_before: bool) -> None:
    peer, here = world.peer(), world.home()
    blocks = forge(peer.blocks, peer.blocks, world.blocks, {(block, group): (3, float("inf"))})
    root = load_root(peer.blocks, world.root)
    forged = build_root(
        peer.blocks, model=root.model, block_size=16, blocks=blocks, tail=root.tail, title="", created="",
        payload_bytes=root.bytes,
    )  # fmt: skip
    leaf = Block.decode(peer.blocks.get(blocks[block])).kv[group]
    if here_before:
        here.store.put(leaf, peer.blocks.get(leaf))
    live = world.go_on(here, peer, root=forged)
    assert [(miss.position_start, miss.cid) for miss in live.counts.misses] == [(16 * block, str(leaf))]
    assert live.counts.executed[block].difference == Difference("key", "finite", "inf")
    assert here.store.has(leaf)
    world.check(live)
