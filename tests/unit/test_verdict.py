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
from cyberkv.cybergraph.verdict import BlockVerdict, Verdict, choose, explain, find_hits, known_models, weigh
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_conversation, make_model

TOKENS = list(range(100, 100 + 5 * BLOCK_SIZE + 2))


def record(store: MemoryStore, index: Index, model: Model, tokens: list[int] = TOKENS, name: str = "talk") -> list[Cid]:
    """Record a conversation as the runtime does: blocks, root, index entries, name. Gives its blocks."""
    root = make_conversation(store, tokens, model=model, block_size=model.block_size)
    blocks = list(block_cids(store, load_root(store, root)))
    index.add_blocks(entries(model.cid(), tokens, blocks, block_size=model.block_size))
    index.set_head(name, root, "")
    return blocks


def look_up(store: Store, index: Index, model: Model, tokens: list[int]) -> list[BlockVerdict]:
    return explain(store, index, model, tokens, find_hits(store, index, model, tokens))


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


def test_known_models_skip_what_cannot_be_read(memory_store: MemoryStore, index: Index) -> None:
    models = [make_model("a"), make_model("b")]
    for name, model in zip("ab", models, strict=True):
        record(memory_store, index, model, name=name)
    assert sorted(known_models(memory_store, index), key=Model.cid) == sorted(models, key=Model.cid)
    memory_store.delete_many([models[0].cid()])
    assert known_models(memory_store, index) == [models[1]]


def test_the_cheaper_way_is_chosen_and_equal_ones_are_loaded() -> None:
    for tokens_s, chosen in ((15.9, Verdict.HIT), (16.0, Verdict.HIT), (16.1, Verdict.RECOMPUTE)):
        choice = choose(1000, 1000.0, tokens=16, prefill_tokens_s=tokens_s)
        assert (choice.load_s, choice.compute_s) == (1.0, 16 / tokens_s)
        assert choice.verdict is chosen
    assert choose(0, 1.0, tokens=0, prefill_tokens_s=1.0).verdict is Verdict.HIT


def test_both_estimates_are_given_as_far_as_the_rates_are_known(memory_store: MemoryStore, index: Index) -> None:
    record(memory_store, index, make_model())
    verdicts = look_up(memory_store, index, make_model(), [*TOKENS, *range(8)])
    assert {(each.load_s, each.compute_s) for each in verdicts} == {(None, None)}
    for load_bytes_s in (None, 64.0):
        for prefill_tokens_s in (None, 2.0):
            weighed = weigh(
                verdicts, block_size=BLOCK_SIZE, load_bytes_s=load_bytes_s, prefill_tokens_s=prefill_tokens_s
            )
            for before, each in zip(verdicts, weighed, strict=True):
                known = load_bytes_s and before.verdict is Verdict.HIT
                assert each.load_s == (each.load_bytes / load_bytes_s if load_bytes_s and known else None)
                assert each.compute_s == (BLOCK_SIZE / prefill_tokens_s if prefill_tokens_s else None)


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
    chosen = weigh(loaded, block_size=BLOCK_SIZE, load_bytes_s=load_bytes_s, prefill_tokens_s=prefill_tokens_s)
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


@given(
    sizes=st.lists(st.integers(1, 1 << 30), max_size=8),
    load_bytes_s=st.floats(1.0, 1e12),
    prefill_tokens_s=st.floats(1.0, 1e9),
)
def test_hits_are_loaded_or_computed_together(sizes: list[int], load_bytes_s: float, prefill_tokens_s: float) -> None:
    hits = [
        BlockVerdict(i, i * BLOCK_SIZE, Verdict.HIT, "", load_bytes=size_bytes) for i, size_bytes in enumerate(sizes)
    ]
    missed = BlockVerdict(len(hits), len(hits) * BLOCK_SIZE, Verdict.REFUSE, "another model", compute_tokens=BLOCK_SIZE)
    *weighed, last = weigh(
        [*hits, missed], block_size=BLOCK_SIZE, load_bytes_s=load_bytes_s, prefill_tokens_s=prefill_tokens_s
    )
    assert len(set(words(weighed))) <= 1
    assert replace(last, compute_s=None) == missed
    cheaper = sum(sizes) / load_bytes_s <= len(sizes) * BLOCK_SIZE / prefill_tokens_s
    assert set(words(weighed)) == ({Verdict.HIT if cheaper else Verdict.RECOMPUTE} if sizes else set())
