"""Keys and values that are no finite numbers: from elsewhere they are a miss, and none of our own gets a name."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cyberkv.cybergraph.chain import build_root, load_root
from cyberkv.cybergraph.errors import UnsafeNumerics
from cyberkv.cybergraph.identity import Difference
from cyberkv.cybergraph.index import Index, IndexEntry, signed_domain
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, Tail
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.verdict import Verdict
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.reblock import reblock
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.selected import Selected
from cyberkv.runtime.selection import POLICIES
from tests.numerics.poison import NUMBERS, forge
from tests.numerics.tiny import tiny_model

TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(100)]
SIGNER = bytes(range(32))
BAD_TOKEN = 271

Engines = Callable[..., Engine]


def recorded(engine: Engine, tokens: list[int] = TOKENS) -> Live:
    live = Live(engine)
    live.append(tokens)
    return live


def signed(engine: Engine, blocks: list) -> None:
    """Have blocks answer for their tokens, as those of a trusted signer do."""
    keys = prefix_keys(engine.model_cid, TOKENS, 16)
    prevs, domain = [None, *blocks], signed_domain(SIGNER)
    engine.index.add_blocks(
        IndexEntry(*each, engine.model_cid, domain) for each in zip(keys, blocks, prevs, strict=False)
    )
    engine.index.trust([SIGNER])


@pytest.mark.parametrize("word", NUMBERS)
def test_a_trusted_block_with_such_a_number_is_a_miss_and_the_answer_is_that_of_a_cold_run(
    word: str, tiny_engine: Engines
) -> None:
    there, here = tiny_engine(home="there"), tiny_engine(home="here")
    sound = recorded(there)
    blocks = forge(there.store, here.store, sound.blocks, {(2, 0): (5, NUMBERS[word])})
    signed(here, blocks)
    assert blocks[:2] == sound.blocks[:2]
    bad = Block.decode(here.store.get(blocks[2])).kv[0]
    live = recorded(here)
    assert live.blocks == sound.blocks
    assert torch.equal(live.next_logits(), sound.next_logits())
    [miss] = live.counts.misses
    assert (miss.position_start, miss.cid) == (32, str(bad))
    verdict = live.counts.executed[2]
    assert (verdict.verdict, verdict.reason) == (Verdict.RECOMPUTE, miss.reason)
    assert verdict.difference == Difference("key", "finite", word)
    assert live.counts.tokens_reused == 32
    assert here.store.has(bad)  # its bytes are what their hash says
    assert here.pool.check_integrity() == here.residency.check_integrity() == []


def test_control_other_numbers_are_used_as_they_are(tiny_engine: Engines) -> None:
    there, here = tiny_engine(home="there"), tiny_engine(home="here")
    sound = recorded(there)
    blocks = forge(there.store, here.store, sound.blocks, {(2, 0): (5, 3.0)})
    signed(here, blocks)
    live = recorded(here)
    assert (live.blocks[:6], live.counts.misses) == (blocks, [])
    assert not torch.equal(live.next_logits(), sound.next_logits())


def test_what_was_computed_here_is_not_looked_at_again(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    live = recorded(engine)
    looked: list[object] = []
    monkeypatch.setattr("cyberkv.runtime.tiers.lower.require_finite", lambda *each: looked.append(each))
    engine.residency.reset()
    again = recorded(engine)
    assert (again.counts.misses, again.counts.tokens_reused, looked) == ([], 96, [])
    engine.index.remove_blocks(live.blocks)
    engine.residency.reset()
    resume(engine, checkpoint(live, title="", created=""))
    assert len(looked) == 6 * engine.geometry.leaves_per_block


@pytest.mark.parametrize("word", NUMBERS)
def test_a_root_with_such_a_block_or_tail_is_computed_from_there(word: str, tiny_engine: Engines) -> None:
    there, here = tiny_engine(home="there"), tiny_engine(home="here")
    sound = recorded(there)
    root = load_root(there.store, checkpoint(sound, title="", created=""))
    blocks = forge(there.store, here.store, sound.blocks, {(4, 0): (9, NUMBERS[word])})
    tail_leaves = [bytearray(there.store.get(leaf)) for leaf in root.tail.kv or ()]
    tail_leaves[0][:4] = torch.tensor(NUMBERS[word]).numpy().tobytes()
    from cyberkv.cybergraph.cid import Cid

    kv = tuple(Cid.of(each, "raw", "blake3") for each in tail_leaves)
    here.store.put_many(zip(kv, map(bytes, tail_leaves), strict=True))
    cid = build_root(
        here.store, model=here.model_cid, block_size=16, blocks=blocks, title="", created="", payload_bytes=1 << 30,
        tail=Tail(root.tail.tokens, root.tail.prefilled, root.tail.domain, kv),
    )  # fmt: skip
    live = resume(here, cid)
    assert [miss.position_start for miss in live.counts.misses] == [64, 96]
    assert torch.equal(live.next_logits(), sound.next_logits())
    assert live.blocks == sound.blocks


def test_reblocking_and_selecting_stop_at_it(tiny_engine: Engines) -> None:
    there, here = tiny_engine(home="there"), tiny_engine(home="here")
    sound = recorded(there)

    def root_with(number: float) -> object:
        blocks = forge(there.store, here.store, sound.blocks, {(0, 0): (5, number)})
        return build_root(
            here.store, model=here.model_cid, block_size=16, blocks=blocks, title="", created="",
            payload_bytes=1 << 30, tail=EMPTY_TAIL,
        )  # fmt: skip

    bad, good = root_with(math.nan), root_with(2.0)
    with pytest.raises(UnsafeNumerics, match="key of layer 0"):
        reblock(here.store, here.index, bad, 32)  # type: ignore[arg-type]
    reblock(here.store, here.index, good, 32)  # type: ignore[arg-type]
    for root, is_bad in ((bad, True), (good, False)):
        selected = Selected.resume(here, root, POLICIES["recent"])  # type: ignore[arg-type]
        if is_bad:
            with pytest.raises(ValueError, match="cannot be gone on from"):
                selected.append(TOKENS[:5])
        else:
            selected.append(TOKENS[:5])
        selected.close()


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model that overflows at one token."""
    folder = tiny_model("llama-untied", tmp_path_factory.mktemp("overflowing"))
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD_TOKEN] = math.inf
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    registry = Registry(tmp_path_factory.mktemp("registry"))
    return registry.load(registry.add(folder, name="overflowing"))


@pytest.fixture
def engine(overflowing: LoadedModel, tmp_path: Path) -> Engine:
    return build_engine(overflowing, MemoryStore(), Index(tmp_path / "index"), capacity_tokens=512)


GOOD = TOKENS[:40]


def test_a_model_that_overflows_records_nothing_of_it(engine: Engine) -> None:
    live = recorded(engine, GOOD[:32])
    before, blocks = set(engine.store.cids()), list(live.blocks)
    with pytest.raises(UnsafeNumerics, match="the key of layer 0, token 3, KV head 0 is nan") as caught:
        live.append([*GOOD[:3], BAD_TOKEN, *GOOD[:20]])
    assert "--dtype" in caught.value.hint
    assert (live.blocks, live.tokens, set(engine.store.cids())) == (blocks, GOOD[:32], before)
    live.append(GOOD[32:])  # and it goes on
    assert torch.equal(live.next_logits(), recorded(engine, GOOD).next_logits())


def test_of_a_tail_that_overflows_the_tokens_are_kept_and_no_answer_is_drawn(engine: Engine) -> None:
    live = recorded(engine, GOOD[:36])
    with_rows = load_root(engine.store, checkpoint(live, title="", created="")).tail
    live.append([BAD_TOKEN])
    for temperature in (0.0, 1.0):
        with pytest.raises(UnsafeNumerics, match="the scores at token 37 are not finite"):
            next(live.generate(1, Sampling(temperature)))
    tail = load_root(engine.store, checkpoint(live, title="", created="")).tail
    assert (tail.tokens, tail.kv) == ((*GOOD[32:36], BAD_TOKEN), None)
    assert (with_rows.tokens, len(with_rows.kv or ())) == (tuple(GOOD[32:36]), engine.geometry.leaves_per_block)


def test_taken_back_it_leaves_nothing_behind(engine: Engine) -> None:
    live, expected = recorded(engine, GOOD[:36]), recorded(engine, GOOD).next_logits()
    live.append([BAD_TOKEN])
    assert not torch.isfinite(live.next_logits()).any()
    live.rollback(36)
    live.append(GOOD[36:])
    assert torch.equal(live.next_logits(), expected)
