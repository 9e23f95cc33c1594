"""What events leave of a tier: a pure table, and a gate that only a verified read opens."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.tiers import Beliefs, Event, Kept, State, witness
from tests.laws.shelves import BLOCK_BYTES, Home, Remote

ENGINE = [
    ("pause", None, State.PAUSED, Kept.PRESERVED, True, False),
    ("sleep", 1, State.SLEEPING, Kept.FORGOTTEN, False, False),
    ("sleep", 2, State.SLEEPING, Kept.FORGOTTEN, False, False),
    ("sleep", None, State.ERROR, Kept.UNKNOWN, False, False),
    ("sleep", 3, State.ERROR, Kept.UNKNOWN, False, False),
    ("reset", None, State.SERVING, Kept.FORGOTTEN, False, True),
    ("wake", None, State.SERVING, Kept.UNKNOWN, False, True),
    ("shutdown in five minutes", None, State.ERROR, Kept.UNKNOWN, False, False),
    ("", None, State.ERROR, Kept.UNKNOWN, False, False),
]


@pytest.mark.parametrize(("event", "level", "state", "kept", "warm", "serving"), ENGINE)
def test_what_an_engine_says(
    event: str, level: int | None, state: State, kept: Kept, warm: bool, serving: bool
) -> None:
    seen = witness(event, level)
    assert (seen.state, seen.kept, seen.warm, seen.serving) == (state, kept, warm, serving)


P, F, U = Kept
TIERS = {
    "pause": (P, P, P, P), "pool-reset": (F, P, P, P), "restart": (F, F, U, U), "gc": (P, P, U, P),
    "disk-full": (P, P, P, P), "peer-not-found": (P, P, P, F), "peer-timeout": (P, P, P, U), "wake": (U, P, P, P),
    "sleep": (U, P, P, P), "reset": (F, P, P, P), "other": (U, U, U, U), "a word nobody knows": (U, U, U, U),
}  # fmt: skip


@pytest.mark.parametrize("event", TIERS)
def test_what_each_tier_has_left(event: str) -> None:
    assert tuple(witness(event).tiers[tier] for tier in Tier) == TIERS[event]


def test_every_event_has_its_row() -> None:
    assert {*map(Event, TIERS.keys() - {"a word nobody knows"})} == {*Event}


@pytest.mark.parametrize("event", TIERS)
def test_a_residency_gives_up_what_an_event_took(event: str) -> None:
    home = Home(2)
    residency = home.residency(2, host_bytes=BLOCK_BYTES)
    residency.ensure(home.blocks).close()
    assert residency.shelf.evict()
    residency.lower.peers.learn(home.blocks[0], 0)
    [below] = [cid for cid in home.blocks if residency.tier_of(cid) is Tier.L1]
    above = next(cid for cid in home.blocks if cid != below)
    residency.note(event)
    l0, l1, l2, l3 = TIERS[event]
    assert (residency.shelf.tier_of(above) is Tier.L0) is (l0 is P)
    assert (residency.shelf.tier_of(below) is Tier.L1) is (l1 is P)
    assert all(entry.stored is (l2 is P) for entry in residency.shelf.entries.values())
    assert residency.lower.peers.holds(home.blocks[0]) is (l3 is P)
    assert residency.check_integrity() == []
    with residency.ensure(home.blocks) as lease:  # a verified read brings it back
        assert len(lease.rows) == 2
    assert {residency.tier_of(cid) for cid in home.blocks} == {Tier.L0}


def test_a_stale_belief_has_an_age() -> None:
    home, beliefs = Home(1), Beliefs()
    cid = home.blocks[0]
    assert beliefs.stale(cid, 5) is None  # never seen
    beliefs.learn(cid, 5)
    assert beliefs.stale(cid, 9) is None  # as good as seen
    beliefs.note(Kept.UNKNOWN)
    assert beliefs.stale(cid, 9) == "last read there 4 uses ago, and unknown since: counts as lost"
    beliefs.note(Kept.PRESERVED)
    assert not beliefs.holds(cid)
    beliefs.learn(cid, 9)
    assert beliefs.holds(cid)


def test_a_stale_belief_is_in_the_plan() -> None:
    home, other = Home(2), Home(2)
    residency = home.residency(2, sources=[Remote(other.store)], may_ask=lambda _: True)
    for cid in home.blocks:
        home.drop(cid)
    residency.ensure(home.blocks).close()
    residency.reset()
    for cid in home.blocks:
        home.drop(cid)
    located = residency.locate(home.blocks)
    assert [each.tier for each in located.places] == [Tier.L3] * 2
    residency.note("peer-timeout")
    located = residency.locate(home.blocks)
    assert (located.places, located.failure and located.failure[0]) == ([], home.blocks[0])
    assert located.failure is not None
    assert "0 uses ago, and unknown since" in located.failure[1]
    residency.ensure(home.blocks[:1]).close()
    residency.reset()
    home.drop(home.blocks[0])
    assert [each.cid for each in residency.locate(home.blocks).places] == home.blocks[:1]


def test_the_number_of_beliefs_is_bounded() -> None:
    beliefs = Beliefs(most=2)
    cids = [Cid.of(bytes([n]), "dag-cbor", "sha2-256") for n in range(3)]
    for tick, cid in enumerate(cids):
        beliefs.learn(cid, tick)
    assert [beliefs.holds(cid) for cid in cids] == [False, True, True]


class GateMachine(RuleBasedStateMachine):
    """Events and verified reads in any order: warm is what was read since the last event that took it."""

    def __init__(self) -> None:
        super().__init__()
        self.cids = [Cid.of(bytes([n]), "dag-cbor", "sha2-256") for n in range(3)]
        self.beliefs, self.warm, self.tick = Beliefs(), set[Cid](), 0

    @rule(at=st.integers(0, 2))
    def verified_read(self, at: int) -> None:
        self.beliefs.learn(self.cids[at], self.tick)
        self.warm.add(self.cids[at])

    @rule(event=st.one_of(st.sampled_from([*map(str, Event)]), st.text(max_size=8)), level=st.integers(0, 3))
    def event(self, event: str, level: int) -> None:
        before = set(self.warm)
        kept = witness(event, level).tiers[Tier.L3]
        self.beliefs.note(kept)
        if kept is not Kept.PRESERVED:
            self.warm.clear()
        assert self.warm <= before  # an event never makes anything warm

    @rule(at=st.integers(0, 2))
    def one_is_not_found(self, at: int) -> None:
        self.beliefs.note(witness("peer-not-found").tiers[Tier.L3], self.cids[at])
        self.warm.discard(self.cids[at])

    @rule()
    def time_passes(self) -> None:
        self.tick += 1

    @invariant()
    def warm_is_what_was_read(self) -> None:
        assert {cid for cid in self.cids if self.beliefs.holds(cid)} == self.warm
        for cid in self.cids:
            assert cid not in self.warm or self.beliefs.stale(cid, self.tick) is None


TestGate = GateMachine.TestCase
