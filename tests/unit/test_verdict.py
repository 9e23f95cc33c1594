"""Verdicts over real nodes, without a model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.nodes import Block, Model
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore, Store
from cyberkv.cybergraph.verdict import (
    Approximation,
    BlockVerdict,
    Located,
    Place,
    Rates,
    Refusal,
    Tier,
    Verdict,
    choose,
    find_here,
    find_refusals,
    known_models,
    plan,
)
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_conversation, make_model

TOKENS = list(range(100, 100 + 5 * BLOCK_SIZE + 2))


def record(store: MemoryStore, index: Index, model: Model, tokens: list[int] = TOKENS, name: str = "talk") -> list[Cid]:
    """Record a conversation as the runtime does: blocks, root, index entries, name. Gives its blocks."""
    root = make_conversation(store, tokens, model=model, block_size=model.block_size)
    blocks = list(block_cids(store, load_root(store, root)))
    index.add_blocks(entries(model.cid(), tokens, blocks, block_size=model.block_size))
    index.set_head(name, root, "")
    return blocks


def look_up(
    store: Store, index: Index, model: Model, tokens: list[int], rates: Rates | None = None
) -> list[BlockVerdict]:
    located = find_here(store, index, model, tokens)
    return plan(
        located, blocks=len(tokens) // model.block_size, block_size=model.block_size, asked=Tier.L2,
        rates=rates or Rates(), refusals=find_refusals(store, index, model, tokens, located),
    )  # fmt: skip


def rates(load_bytes_s: float | None, prefill_tokens_s: float | None) -> Rates:
    return Rates(prefill_tokens_s, {Tier.L2: load_bytes_s} if load_bytes_s else {})


def words(verdicts: list[BlockVerdict]) -> list[Verdict]:
    return [each.verdict for each in verdicts]


def test_nothing_recorded_is_computed(memory_store: MemoryStore, index: Index) -> None:
    verdicts = look_up(memory_store, index, make_model(), TOKENS)
    assert words(verdicts) == [Verdict.RECOMPUTE] * 5
    assert verdicts[0].reason == "no block is recorded for this model and these tokens"
    assert verdicts[4].reason == "block 0 before it has to be computed"
    assert [each.position_start for each in verdicts] == [0, 4, 8, 12, 16]
    assert sum(each.compute_tokens for each in verdicts) == 20
    assert look_up(memory_store, index, make_model(), TOKENS[: BLOCK_SIZE - 1]) == []


def test_what_is_recorded_hits_with_its_cost(memory_store: MemoryStore, index: Index) -> None:
    blocks = record(memory_store, index, make_model())
    verdicts = look_up(memory_store, index, make_model(), TOKENS)
    assert words(verdicts) == [Verdict.HIT] * 5
    assert [each.cid for each in verdicts] == blocks
    for each, cid in zip(verdicts, blocks, strict=True):
        leaves = Block.decode(memory_store.get(cid)).kv
        assert each.load_bytes == sum(memory_store.size_bytes(leaf) or 0 for leaf in leaves) > 0
        assert each.compute_tokens == 0
    longer = look_up(memory_store, index, make_model(), [*TOKENS, *range(8)])
    assert words(longer) == [Verdict.HIT] * 5 + [Verdict.RECOMPUTE] * 2


@pytest.mark.parametrize("at", range(5))
def test_an_absent_block_or_leaf_is_named(memory_store: MemoryStore, index: Index, at: int) -> None:
    blocks = record(memory_store, index, make_model())
    leaf = Block.decode(memory_store.get(blocks[at])).kv[1]
    for absent in (leaf, blocks[at]):
        memory_store.delete_many([absent])
        verdicts = look_up(memory_store, index, make_model(), TOKENS)
        assert words(verdicts) == [Verdict.HIT] * at + [Verdict.RECOMPUTE] * (5 - at)
        assert verdicts[at].cid == absent
        assert str(absent) in verdicts[at].reason


def test_a_block_under_the_wrong_key_is_no_hit(memory_store: MemoryStore, index: Index) -> None:
    model = make_model()
    other = record(memory_store, index, model, [7] * BLOCK_SIZE)[0]
    index.remove_blocks([other])
    key = next(prefix_keys(model.cid(), TOKENS, BLOCK_SIZE))
    index.add_blocks([IndexEntry(key, other, None, model.cid(), "here")])
    verdicts = look_up(memory_store, index, model, TOKENS)
    assert (verdicts[0].verdict, verdicts[0].cid) == (Verdict.RECOMPUTE, other)
    assert "'tokens' does not fit" in verdicts[0].reason


def test_a_block_with_too_few_leaves_is_no_hit(memory_store: MemoryStore, index: Index) -> None:
    model = make_model()
    [short] = make_blocks(memory_store, model.cid(), TOKENS[:BLOCK_SIZE], leaves=1)
    index.add_blocks(entries(model.cid(), TOKENS, [short]))
    verdicts = look_up(memory_store, index, model, TOKENS)
    assert (verdicts[0].verdict, verdicts[0].cid) == (Verdict.RECOMPUTE, short)
    assert "'kv' does not fit" in verdicts[0].reason


CHANGES = {
    "weights": {"weights": "blake3:changed"},
    "rope.base": {"rope": replace(make_model().rope, base="500000.0")},
    "rope.scaling": {"rope": replace(make_model().rope, scaling=(("factor", "2.0"), ("rope_type", "linear")))},
    "attention": {"attention": ("full", "window:8", "full", "full")},
    "kv_dtype": {"kv_dtype": "bf16"},
    "block_size": {"block_size": 2 * BLOCK_SIZE},
}


@pytest.mark.parametrize("field", CHANGES)
def test_another_identity_is_refused_by_its_first_differing_field(
    memory_store: MemoryStore, index: Index, field: str
) -> None:
    theirs = make_model()
    ours = replace(theirs, **CHANGES[field])  # type: ignore[arg-type]
    record(memory_store, index, theirs)
    verdicts = look_up(memory_store, index, ours, TOKENS)
    assert words(verdicts) == [Verdict.REFUSE] * (len(TOKENS) // ours.block_size)
    for each in verdicts:
        assert each.difference is not None
        assert each.difference.field == field
        assert each.difference.a != each.difference.b
        assert each.cid == theirs.cid()
        assert field in each.reason
    # The control: where our own is recorded too, it hits.
    record(memory_store, index, ours, name="ours")
    assert set(words(look_up(memory_store, index, ours, TOKENS))) == {Verdict.HIT}


def test_a_refusal_ends_where_the_other_recording_ends(memory_store: MemoryStore, index: Index) -> None:
    record(memory_store, index, make_model("theirs"), TOKENS[:9])
    verdicts = look_up(memory_store, index, make_model("ours"), TOKENS)
    assert words(verdicts) == [Verdict.REFUSE] * 2 + [Verdict.RECOMPUTE] * 3


def test_what_an_edit_gave_up_is_refused(memory_store: MemoryStore, index: Index) -> None:
    model = make_model()
    blocks = record(memory_store, index, model)
    index.give_up(blocks[2:4])
    index.remove_blocks(blocks[4:])
    verdicts = look_up(memory_store, index, model, TOKENS)
    assert words(verdicts) == [Verdict.HIT] * 2 + [Verdict.REFUSE] * 2 + [Verdict.RECOMPUTE]
    assert [each.cid for each in verdicts[2:]] == [*blocks[2:4], None]
    assert verdicts[2].difference == ("given_up", False, True)
    assert verdicts[2].reason == "an edit took this text out, and it was not computed since"
    other = look_up(memory_store, index, model, [*TOKENS[:8], 7, *TOKENS[9:]])
    assert words(other) == [Verdict.HIT] * 2 + [Verdict.RECOMPUTE] * 3  # the control: another text beside it
    index.add_blocks(entries(model.cid(), TOKENS, blocks))
    assert words(look_up(memory_store, index, model, TOKENS)) == [Verdict.HIT] * 5


def test_known_models_skip_what_cannot_be_read(memory_store: MemoryStore, index: Index) -> None:
    models = [make_model("a"), make_model("b")]
    for name, model in zip("ab", models, strict=True):
        record(memory_store, index, model, name=name)
    assert sorted(known_models(memory_store, index), key=Model.cid) == sorted(models, key=Model.cid)
    memory_store.delete_many([models[0].cid()])
    assert known_models(memory_store, index) == [models[1]]


def test_the_cheaper_way_is_chosen_and_equal_ones_are_loaded() -> None:
    for tokens_s, is_load in ((15.9, True), (16.0, True), (16.1, False)):
        choice = choose(1000, 1000.0, tokens=16, prefill_tokens_s=tokens_s)
        assert (choice.load_s, choice.compute_s) == (1.0, 16 / tokens_s)
        assert choice.is_load is is_load
    assert choose(0, 1.0, tokens=0, prefill_tokens_s=1.0).is_load


def test_both_estimates_are_given_as_far_as_the_rates_are_known(memory_store: MemoryStore, index: Index) -> None:
    record(memory_store, index, make_model())
    tokens = [*TOKENS, *range(8)]
    verdicts = look_up(memory_store, index, make_model(), tokens)
    assert {(each.load_s, each.compute_s) for each in verdicts} == {(None, None)}
    for load_bytes_s in (None, 64.0):
        for prefill_tokens_s in (None, 2.0):
            weighed = look_up(memory_store, index, make_model(), tokens, rates(load_bytes_s, prefill_tokens_s))
            for before, each in zip(verdicts, weighed, strict=True):
                known = load_bytes_s and before.verdict is Verdict.HIT
                assert each.load_s == (each.load_bytes / load_bytes_s if load_bytes_s and known else None)
                assert each.compute_s == (BLOCK_SIZE / prefill_tokens_s if prefill_tokens_s else None)


BLOCKS = [Cid.of(bytes([n]), "dag-cbor", "sha2-256") for n in range(8)]
FOUND = [
    Place(BLOCKS[0], Tier.L0, 0), Place(BLOCKS[1], Tier.L1, 100), Place(BLOCKS[2], Tier.L2, 100),
    Place(BLOCKS[3], Tier.L3, 100), Place(BLOCKS[4], Tier.L3, 100),
]  # fmt: skip
SPEEDS = Rates(100.0, {Tier.L1: 1e6, Tier.L2: 1e4, Tier.L3: 1e3})
OTHER = Refusal("rope.base is 1 here and 2 there", BLOCKS[6])
NEAR = Approximation(BLOCKS[7], 0.25, "spliced: largest difference of scores", load_bytes=100, tier=Tier.L2)
Words = list[tuple[Verdict, Tier | None]]


@pytest.mark.parametrize(
    ("asked", "options", "expected"),
    [
        (
            Tier.L0,
            {"budget_bytes": 300, "refusals": {5: OTHER}, "approximations": {6: NEAR}},
            [
                (Verdict.HIT, Tier.L0),
                (Verdict.FAULT, Tier.L1),
                (Verdict.FAULT, Tier.L2),
                (Verdict.FAULT, Tier.L3),
                (Verdict.ABSTAIN, Tier.L3),
                (Verdict.REFUSE, None),
                (Verdict.RECONCILED, Tier.L2),
                (Verdict.RECOMPUTE, None),
            ],
        ),
        (Tier.L2, {}, [(Verdict.HIT, Tier(n)) for n in range(3)] + [(Verdict.FAULT, Tier.L3)] * 2),
        (Tier.L3, {"budget_bytes": 0}, [(Verdict.HIT, each.tier) for each in FOUND]),
        (
            Tier.L0,
            {"budget_bytes": 199},
            [(Verdict.HIT, Tier.L0), (Verdict.FAULT, Tier.L1), (Verdict.ABSTAIN, Tier.L2)],
        ),
        (Tier.L0, {"budget_bytes": 0}, [(Verdict.HIT, Tier.L0), (Verdict.ABSTAIN, Tier.L1)]),
        (
            Tier.L0,
            {"rates": Rates(50.0, {Tier.L1: 1e6, Tier.L2: 1e4, Tier.L3: 1e3})},
            [(Verdict.HIT, Tier.L0), (Verdict.FAULT, Tier.L1), (Verdict.FAULT, Tier.L2), (Verdict.RECOMPUTE, Tier.L3)],
        ),
        (Tier.L0, {"refusals": {0: OTHER}}, [(Verdict.REFUSE, None), (Verdict.RECOMPUTE, None)]),
    ],
)
def test_one_fixture_reaches_all_six(asked: Tier, options: dict[str, object], expected: Words) -> None:
    given_rates = options.pop("rates", Rates(1.0, SPEEDS.load_bytes_s))
    verdicts = plan(Located(FOUND), blocks=8, block_size=4, asked=asked, **{"rates": given_rates, **options})  # type: ignore[arg-type]
    assert [(each.verdict, each.tier) for each in verdicts][: len(expected)] == expected
    for each in verdicts:
        assert (each.index, each.position_start) == (verdicts.index(each), 4 * verdicts.index(each))
        assert bool(each.reason) == (each.verdict is not Verdict.HIT)
        assert each.compute_tokens == (0 if each.verdict.loads else 4)
        assert (each.error is None) == (each.verdict is not Verdict.RECONCILED)
        if each.verdict in (Verdict.FAULT, Verdict.ABSTAIN, Verdict.RECONCILED):
            assert each.difference is not None
            assert each.difference.a != each.difference.b
            assert each.cid is not None
    if asked is Tier.L0 and len(expected) == 8:
        assert {each.verdict for each in verdicts} == set(Verdict)


def test_a_block_that_is_refused_ends_what_can_be_used() -> None:
    verdicts = plan(Located(FOUND), blocks=5, block_size=4, rates=Rates(), refusals={2: OTHER})
    assert words(verdicts) == [Verdict.HIT, Verdict.FAULT, Verdict.REFUSE, Verdict.RECOMPUTE, Verdict.RECOMPUTE]
    assert verdicts[4].reason == "block 2 before it has to be computed"


def test_a_failure_is_named_and_positions_count_from_the_first_block() -> None:
    located = Located(FOUND[:1], (BLOCKS[5], "last read there 3 uses ago, and unknown since: counts as lost", None))
    verdicts = plan(located, blocks=3, block_size=4, rates=Rates(), first_block=10)
    assert [(each.index, each.position_start) for each in verdicts] == [(10, 40), (11, 44), (12, 48)]
    assert (verdicts[1].cid, verdicts[1].reason) == (BLOCKS[5], located.failure and located.failure[1])
    assert verdicts[2].reason == "block 11 before it has to be computed"


class Clock:
    """Time that passes only where something takes it."""

    def __init__(self) -> None:
        self.now_s = 0.0


class SlowStore(MemoryStore):
    """Takes a given time for each byte that is read."""

    def __init__(self, clock: Clock, load_bytes_s: float) -> None:
        super().__init__()
        self.clock, self.load_bytes_s = clock, load_bytes_s

    def get(self, cid: Cid) -> bytes:
        data = super().get(cid)
        self.clock.now_s += len(data) / self.load_bytes_s
        return data


def spent_s(store: SlowStore, index: Index, verdicts: list[BlockVerdict], prefill_tokens_s: float) -> float:
    """Do what the verdicts say, block by block, and give the time it took."""
    blocks = index.lookup_chain(prefix_keys(make_model().cid(), TOKENS, BLOCK_SIZE), "")
    leaves = [Block.decode(MemoryStore.get(store, cid)).kv for cid in blocks]
    start_s = store.clock.now_s
    for each in verdicts:
        if each.verdict is Verdict.HIT:
            for leaf in leaves[each.index]:
                store.get(leaf)
        store.clock.now_s += each.compute_tokens / prefill_tokens_s
    return store.clock.now_s - start_s


@pytest.mark.parametrize("recorded", [0, 3, 5])
@pytest.mark.parametrize("load_bytes_s", [1e3, 1e5, 1e7])
@pytest.mark.parametrize("prefill_tokens_s", [10.0, 1e3, 1e5])
def test_doing_what_is_chosen_takes_the_lesser_time_of_both(
    index: Index, recorded: int, load_bytes_s: float, prefill_tokens_s: float
) -> None:
    store = SlowStore(Clock(), load_bytes_s)
    record(store, index, make_model(), TOKENS[: recorded * BLOCK_SIZE])
    loaded = look_up(store, index, make_model(), TOKENS)
    assert words(loaded) == [Verdict.HIT] * recorded + [Verdict.RECOMPUTE] * (5 - recorded)
    computed = [replace(each, verdict=Verdict.RECOMPUTE, compute_tokens=BLOCK_SIZE) for each in loaded]
    chosen = look_up(store, index, make_model(), TOKENS, rates(load_bytes_s, prefill_tokens_s))
    load_s, compute_s, chosen_s = (spent_s(store, index, each, prefill_tokens_s) for each in (loaded, computed, chosen))
    assert chosen_s == pytest.approx(min(load_s, compute_s))
    # The control: the two ways differ, so the other choice would have shown.
    assert recorded == 0 or max(load_s, compute_s) > 1.01 * chosen_s
    assert all(each.reason for each in chosen if each.verdict is not Verdict.HIT)


def test_a_block_of_64_kib_takes_five_milliseconds_over_100_mbit_s() -> None:
    store = SlowStore(Clock(), 100e6 / 8)
    leaf = Cid.of(bytes(65_536), "raw", "blake3")
    store.put(leaf, bytes(65_536))
    store.get(leaf)
    assert store.clock.now_s == choose(65_536, 100e6 / 8, tokens=16, prefill_tokens_s=1.0).load_s == 0.00524288


PLACES = st.lists(st.tuples(st.sampled_from(Tier), st.sampled_from([1, 4, 64, 256, 1024])), max_size=8)


@given(found=PLACES, speed=st.sampled_from([1, 4, 16, 64]), gain=st.sampled_from([1.0, 2.0]), more=st.integers(0, 2))
def test_the_cut_takes_the_least_time_of_all(found: list[tuple[Tier, int]], speed: int, gain: float, more: int) -> None:
    """Oracle: every cut is tried, and of equal ones the one that loads more is taken."""
    load_bytes_s = {Tier.L1: 4096.0, Tier.L2: 256.0, Tier.L3: 16.0}
    places = [Place(BLOCKS[i], tier, 0 if tier is Tier.L0 else size) for i, (tier, size) in enumerate(found)]
    blocks = len(places) + more
    verdicts = plan(
        Located(places), blocks=blocks, block_size=16, rates=Rates(float(speed), load_bytes_s, least_gain=gain)
    )
    cut = sum(each.verdict.loads for each in verdicts)
    assert words(verdicts) == sorted(words(verdicts), key=lambda word: not word.loads)

    def seconds(at: int) -> float:
        loads = sum(each.load_bytes / load_bytes_s[each.tier] for each in places[:at] if each.load_bytes)
        return loads + gain * (len(places) - at) * 16 / speed

    all_s = [seconds(at) for at in range(len(places) + 1)]  # powers of two: exact
    assert cut == max(at for at, each_s in enumerate(all_s) if each_s == min(all_s))


@given(found=PLACES, budget_bytes=st.integers(0, 3000), asked=st.sampled_from(Tier))
def test_a_budget_is_never_passed(found: list[tuple[Tier, int]], budget_bytes: int, asked: Tier) -> None:
    places = [Place(BLOCKS[i], tier, 0 if tier is Tier.L0 else size) for i, (tier, size) in enumerate(found)]
    verdicts = plan(
        Located(places), blocks=len(places), block_size=4, rates=Rates(), asked=asked, budget_bytes=budget_bytes
    )
    paid = sum(each.load_bytes for each in verdicts if each.verdict is Verdict.FAULT)
    assert paid <= budget_bytes
    if (first := next((each for each in verdicts if each.verdict is Verdict.ABSTAIN), None)) is not None:
        assert paid + first.load_bytes > budget_bytes
    free = plan(Located(places), blocks=len(places), block_size=4, rates=Rates(), asked=asked)  # the control
    assert Verdict.ABSTAIN not in words(free)
