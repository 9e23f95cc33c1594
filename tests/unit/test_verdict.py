"""Verdicts over real nodes, without a model."""

from dataclasses import replace

import pytest

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.nodes import Block, Model
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.verdict import BlockVerdict, Verdict, explain, known_models
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_conversation, make_model

TOKENS = list(range(100, 100 + 5 * BLOCK_SIZE + 2))


def record(store: MemoryStore, index: Index, model: Model, tokens: list[int] = TOKENS, name: str = "talk") -> list[Cid]:
    """Record a conversation as the runtime does: blocks, root, index entries, name. Gives its blocks."""
    root = make_conversation(store, tokens, model=model, block_size=model.block_size)
    blocks = list(block_cids(store, load_root(store, root)))
    index.add_blocks(entries(model.cid(), tokens, blocks, block_size=model.block_size))
    index.set_head(name, root, "")
    return blocks


def words(verdicts: list[BlockVerdict]) -> list[Verdict]:
    return [each.verdict for each in verdicts]


def test_nothing_recorded_is_computed(memory_store: MemoryStore, index: Index) -> None:
    verdicts = explain(memory_store, index, make_model(), TOKENS)
    assert words(verdicts) == [Verdict.RECOMPUTE] * 5
    assert verdicts[0].reason == "no block is recorded for this model and these tokens"
    assert verdicts[4].reason == "block 0 before it has to be computed"
    assert [each.position_start for each in verdicts] == [0, 4, 8, 12, 16]
    assert sum(each.compute_tokens for each in verdicts) == 20
    assert explain(memory_store, index, make_model(), TOKENS[: BLOCK_SIZE - 1]) == []


def test_what_is_recorded_hits_with_its_cost(memory_store: MemoryStore, index: Index) -> None:
    blocks = record(memory_store, index, make_model())
    verdicts = explain(memory_store, index, make_model(), TOKENS)
    assert words(verdicts) == [Verdict.HIT] * 5
    assert [each.cid for each in verdicts] == blocks
    for each, cid in zip(verdicts, blocks, strict=True):
        leaves = Block.decode(memory_store.get(cid)).kv
        assert each.load_bytes == sum(memory_store.size_bytes(leaf) or 0 for leaf in leaves) > 0
        assert each.compute_tokens == 0
    longer = explain(memory_store, index, make_model(), [*TOKENS, *range(8)])
    assert words(longer) == [Verdict.HIT] * 5 + [Verdict.RECOMPUTE] * 2


@pytest.mark.parametrize("at", range(5))
def test_an_absent_block_or_leaf_is_named(memory_store: MemoryStore, index: Index, at: int) -> None:
    blocks = record(memory_store, index, make_model())
    leaf = Block.decode(memory_store.get(blocks[at])).kv[1]
    for absent in (leaf, blocks[at]):
        memory_store.delete_many([absent])
        verdicts = explain(memory_store, index, make_model(), TOKENS)
        assert words(verdicts) == [Verdict.HIT] * at + [Verdict.RECOMPUTE] * (5 - at)
        assert verdicts[at].cid == absent
        assert str(absent) in verdicts[at].reason


def test_a_block_under_the_wrong_key_is_no_hit(memory_store: MemoryStore, index: Index) -> None:
    model = make_model()
    other = record(memory_store, index, model, [7] * BLOCK_SIZE)[0]
    index.remove_blocks([other])
    key = next(prefix_keys(model.cid(), TOKENS, BLOCK_SIZE))
    index.add_blocks([IndexEntry(key, other, None, model.cid(), "here")])
    verdicts = explain(memory_store, index, model, TOKENS)
    assert (verdicts[0].verdict, verdicts[0].cid) == (Verdict.RECOMPUTE, other)
    assert "'tokens' does not fit" in verdicts[0].reason


def test_a_block_with_too_few_leaves_is_no_hit(memory_store: MemoryStore, index: Index) -> None:
    model = make_model()
    [short] = make_blocks(memory_store, model.cid(), TOKENS[:BLOCK_SIZE], leaves=1)
    index.add_blocks(entries(model.cid(), TOKENS, [short]))
    verdicts = explain(memory_store, index, model, TOKENS)
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
    verdicts = explain(memory_store, index, ours, TOKENS)
    assert words(verdicts) == [Verdict.REFUSE] * (len(TOKENS) // ours.block_size)
    for each in verdicts:
        assert each.difference is not None
        assert each.difference.field == field
        assert each.difference.a != each.difference.b
        assert each.cid == theirs.cid()
        assert field in each.reason
    # The control: where our own is recorded too, it hits.
    record(memory_store, index, ours, name="ours")
    assert set(words(explain(memory_store, index, ours, TOKENS))) == {Verdict.HIT}


def test_a_refusal_ends_where_the_other_recording_ends(memory_store: MemoryStore, index: Index) -> None:
    record(memory_store, index, make_model("theirs"), TOKENS[:9])
    verdicts = explain(memory_store, index, make_model("ours"), TOKENS)
    assert words(verdicts) == [Verdict.REFUSE] * 2 + [Verdict.RECOMPUTE] * 3


def test_known_models_skip_what_cannot_be_read(memory_store: MemoryStore, index: Index) -> None:
    models = [make_model("a"), make_model("b")]
    for name, model in zip("ab", models, strict=True):
        record(memory_store, index, model, name=name)
    assert sorted(known_models(memory_store, index), key=Model.cid) == sorted(models, key=Model.cid)
    memory_store.delete_many([models[0].cid()])
    assert known_models(memory_store, index) == [models[1]]
