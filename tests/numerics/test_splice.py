"""Documents placed into a conversation: exact ways are exact, the approximate one says by how much it is not."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cyberkv.cybergraph.chain import load_root, walk
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import IdentityMismatch, OutOfRange, Refused
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.verdict import Verdict
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry, smollm2_source
from cyberkv.runtime.rope import Rotary
from cyberkv.runtime.splice.documents import Engines, make_findable
from cyberkv.runtime.splice.measure import SpliceError, compute_in_full, error_of, text_of
from cyberkv.runtime.splice.measure import Text as Computed
from cyberkv.runtime.splice.place import Origin, Text, splice_approximately, splice_exactly
from cyberkv.runtime.splice.receipt import Mode, Piece
from cyberkv.runtime.splice.reconcile import reconcile
from cyberkv.runtime.splice.scattered import ScatteredCache

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
SHARES = (0.0, 0.05, 0.10, 0.20, 0.40, 1.0)


def words(count: int, salt: int) -> list[int]:
    return [(13 * i * i + 11 * i + 7 * salt + 5) % 250 for i in range(count)]


BEFORE, AFTER = words(40, 1), words(21, 2)
DOCUMENTS = (words(150, 3), words(90, 4))


class Case(NamedTuple):
    """A conversation, two recorded documents, and what they are placed into."""

    engines: Engines
    text: Text
    origin: Origin
    rows: list[Tensor]

    @property
    def engine(self) -> Engine:
        return self.engines.main


def record(engine: Engine, tokens: list[int], title: str = "t") -> Cid:
    live = Live(engine)
    live.append(tokens)
    root = checkpoint(live, title=title, created="")
    live.close()
    return root


def case(engine: Engine, before: list[int] = BEFORE, after: list[int] = AFTER) -> Case:
    engines = Engines(engine)
    roots = [record(engines.sized(64), document) for document in DOCUMENTS]
    pieces = tuple(Piece(root, 0, tuple(document)) for root, document in zip(roots, DOCUMENTS, strict=True))
    conversation = record(engine, before + after)
    root = load_root(engine.store, conversation)
    blocks = tuple(step.cid for step in walk(engine.store, root))
    origin = Origin(conversation, engines.rows(conversation, 0, len(before)), blocks)
    rows = [engines.rows(piece.root, 0, len(piece.tokens)) for piece in pieces]
    return Case(engines, Text(tuple(before), pieces, tuple(after)), origin, rows)


def measured(made: Case, share: float) -> SpliceError:
    _, receipt = splice_approximately(
        made.engine, made.origin, made.text, made.rows, share=share, measured=True, title="s", created=""
    )
    assert receipt.error is not None
    return receipt.error


def worst(error: SpliceError) -> float:
    return max(max(layer.k, layer.v) for layer in error.layers)


def test_the_four_candidates(tiny_engine: Callable[..., Engine]) -> None:
    check_the_candidates(tiny_engine(), least_error=0.05)


def check_the_candidates(engine: Engine, least_error: float) -> Case:
    """Oracle, document as prefix, naive splice, repair by recomputing: what is exact, what is found, what is off."""
    made = case(engine)
    text = made.text
    oracle = compute_in_full(engine, text.tokens)

    repaired, repair = splice_exactly(engine, text)
    assert (repair.mode, repair.exact, repair.verdict) == (Mode.RECOMPUTE, True, "RECOMPUTE")
    assert torch.equal(made.engines.rows(checkpoint(repaired, title="r", created=""), 0, 301), oracle.rows)
    assert torch.equal(repaired.next_logits(), cold(engine, text.tokens).next_logits())

    first = Text((), text.pieces[:1], tuple(BEFORE + AFTER))
    make_findable(engine, first.pieces[0].root)
    prefixed, prefix = splice_exactly(engine, first)
    assert (prefix.mode, prefix.exact, prefix.verdict) == (Mode.PREFIX, True, "HIT")
    assert prefix.reused_tokens == 128
    assert torch.equal(prefixed.next_logits(), cold(engine, first.tokens).next_logits())

    root, naive = splice_approximately(
        engine, made.origin, text, made.rows, share=0.0, measured=True, title="n", created=""
    )
    assert (naive.mode, naive.exact, naive.verdict) == (Mode.RECONCILE, False, "RECONCILED")
    assert naive.error is not None
    assert (naive.error.layers[0].k, naive.error.layers[0].v) == (0.0, 0.0)
    assert all(layer.k > least_error and layer.v > least_error for layer in naive.error.layers[1:])
    assert naive.error.logits_max_abs > 0.01
    assert load_root(engine.store, root).approx is not None
    return made


def cold(engine: Engine, tokens: list[int]) -> Live:
    """The text computed with nothing of it found."""
    live = Live(engine)
    for start in range(0, len(tokens), 10_000):
        live.append(tokens[start:])
    return live


@pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(each, marks=pytest.mark.slow) for each in ("glm", "qwen3-yarn"))]
)
def test_the_error_shrinks_to_nothing(family: str, tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine(family))
    curve = [measured(made, share) for share in SHARES]
    assert all((error.layers[0].k, error.layers[0].v) == (0.0, 0.0) for error in curve)
    assert worst(curve[0]) > 0.05
    assert worst(curve[-1]) < 1e-4
    assert curve[-1].kl < 1e-6
    assert worst(curve[-2]) < worst(curve[0])


def test_a_splice_can_be_off_where_the_likeliest_token_agrees(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    agreeing = []
    for salt in range(6):
        error = measured(case(engine, after=words(21, 20 + salt)), 0.2)
        assert error.logits_max_abs > 1e-3
        agreeing.append(error.same_choice)
    assert any(agreeing)


def test_a_model_of_one_layer_is_exact(tiny_engine: Callable[..., Engine]) -> None:
    """There K and V are functions of the token alone; the control above is a model of three."""
    made = case(tiny_engine())
    engine = made.engine
    one = engine.decoder.truncated(1)
    rows = torch.cat([made.origin.rows, *made.rows])[:, :1]
    tokens = made.text.tokens[: rows.shape[0]]
    cache = reconcile(one, engine.rotary, tokens, rows.clone(), made.text.spans, 0.0).cache
    whole = ScatteredCache(engine.config, engine.rotary, torch.zeros_like(rows))
    whole.compute(one, tokens, range(len(tokens)))
    assert torch.equal(cache.rows, whole.rows)


def test_the_probe_is_the_error_of_the_second_layer(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine(), after=[])
    oracle = compute_in_full(made.engine, made.text.tokens)
    for share, bound in ((0.0, 0.3), (0.4, 0.3), (1.0, 1e-9)):
        rows = torch.cat([made.origin.rows, *made.rows])
        result = reconcile(made.engine.decoder, made.engine.rotary, made.text.tokens, rows, made.text.spans, share)
        error = error_of(text_of(made.engine, made.text.tokens, result.cache), oracle, len(BEFORE)).layers[1]
        assert result.probe == pytest.approx((error.k**2 + error.v**2) ** 0.5 / 2**0.5, abs=1e-4)
        assert result.probe < 1 + bound


def test_first_tokens_of_each_document_come_first(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine(), after=[])
    engine, spans = made.engine, made.text.spans

    def chosen(share: float) -> set[int]:
        rows = torch.cat([made.origin.rows, *made.rows])
        return {*reconcile(engine.decoder, engine.rotary, made.text.tokens, rows, spans, share).recomputed}

    inside = sum(map(len, spans))
    assert chosen(2 / inside) == {spans[0].start, spans[1].start}
    assert chosen(32 / inside) == {*spans[0][:16], *spans[1][:16]}
    assert chosen(0.3) < chosen(0.6) < chosen(1.0) == {*spans[0], *spans[1]}


def test_a_document_is_moved_to_another_block_size_without_computing(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    root = record(Engines(engine).sized(64), DOCUMENTS[0])
    before = cold(tiny_engine(home="elsewhere"), DOCUMENTS[0]).blocks
    make_findable(engine, root)
    make_findable(engine, root)
    live = Live(engine)
    live.append(DOCUMENTS[0] + AFTER)
    assert live.counts.tokens_reused == 128
    assert live.blocks[:8] == before[:8]


def test_a_document_elsewhere_than_at_the_start_shares_nothing(tiny_engine: Callable[..., Engine]) -> None:
    """Honest retrieval: what is not a prefix is computed in full, and another order of two documents too."""
    engine = tiny_engine()
    for document in DOCUMENTS:
        record(engine, document)
    _, receipt = splice_exactly(engine, Text(tuple(BEFORE), case(engine).text.pieces, ()))
    assert receipt.reused_tokens <= len(BEFORE)
    pieces = [Piece(record(engine, document), 0, tuple(document)) for document in DOCUMENTS]
    _, both = splice_exactly(engine, Text((), tuple(pieces), ()))
    _, swapped = splice_exactly(engine, Text((), tuple(reversed(pieces)), ()))
    assert (both.reused_tokens, swapped.reused_tokens) == (144, 80)
    _, new = splice_exactly(engine, Text((), (Piece(pieces[0].root, 0, tuple(words(50, 77))),), ()))
    assert [each.verdict for each in (both, new)] == [Verdict.HIT, Verdict.RECOMPUTE]


def test_lost_rows_of_a_document_are_computed_from_its_text(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    engines = Engines(engine)
    root = record(engines.sized(64), DOCUMENTS[0])
    rows = engines.rows(root, 0, 150)
    blocks = [step.cid for step in walk(engine.store, load_root(engine.store, root))]
    leaves = [cid for step in walk(engine.store, load_root(engine.store, root)) for cid in step.block.kv]
    engine.store.delete_many([root, *blocks, *leaves])
    engine.index.remove_blocks(blocks)
    assert torch.equal(engines.compute(DOCUMENTS[0], 64), rows)
    assert not engine.store.missing([*blocks, *leaves])


def test_refusals_are_typed(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine())
    engine = made.engine
    for text, what in (
        (Text((), (), ()), "without tokens"),
        (Text((), (Piece(made.origin.root, 0, ()),), ()), "without tokens"),
        (Text((), (Piece(made.origin.root, 0, (1,) * 3000),), ()), "3000 tokens"),
    ):
        with pytest.raises(OutOfRange, match=what):
            splice_exactly(engine, text)
        with pytest.raises(OutOfRange, match=what):
            splice_approximately(engine, made.origin, text, [], share=0.2, measured=False, title="", created="")
    with pytest.raises(Refused, match="blocks of 24"):
        made.engines.sized(24)
    other = record(tiny_engine("qwen3"), DOCUMENTS[0])
    with pytest.raises(IdentityMismatch) as caught:
        made.engines.rows(other, 0, 10)
    assert caught.value.data["field"] == "weights"


@given(
    positions=st.lists(st.integers(0, 99), min_size=1, max_size=40), heads=st.integers(1, 3),
    rotary_dims=st.sampled_from((4, 16)), interleaved=st.booleans(),
)  # fmt: skip
def test_rotation_of_scattered_rows_is_that_of_consecutive_ones(
    positions: list[int], heads: int, rotary_dims: int, interleaved: bool
) -> None:
    rotary = Rotary(rotary_dims, 10_000.0, {}, 100, torch.float32, interleaved=interleaved)
    rows = torch.randn(100, heads, 16, generator=torch.Generator().manual_seed(1))
    turned = rotary.turn(rows[positions], rotary.cos[positions], rotary.sin[positions])
    assert torch.equal(turned, rotary.rotate(rows, 0)[positions])


@pytest.mark.parametrize("family", ["mistral", "glm", pytest.param("qwen3-yarn", marks=pytest.mark.slow)])
def test_scattered_rows_equal_consecutive_ones_closely(family: str, tiny_engine: Callable[..., Engine]) -> None:
    """Also where rows turn in part, by pairs, or by more than an angle."""
    engine = tiny_engine(family)
    text = words(300, 5)
    right: Computed = compute_in_full(engine, text)
    cache = ScatteredCache(engine.config, engine.rotary, right.rows.clone())
    cache.compute(engine.decoder, text, [3, 100, 101, 299])
    assert torch.allclose(cache.rows, right.rows, atol=1e-4)
    frozen = ScatteredCache(engine.config, engine.rotary, torch.zeros_like(right.rows))
    frozen.compute(engine.decoder, text, [3, 100], frozen=True)
    assert not frozen.rows.any()


@given(
    before=st.integers(0, 40), lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3), after=st.integers(0, 20),
    share=st.sampled_from((0.0, 0.1, 0.5, 1.0)),
)  # fmt: skip
@settings(max_examples=25)
def test_any_layout(before: int, lengths: list[int], after: int, share: float, shared_engine: Engine) -> None:
    """Against computing everything: the first layer is right, all of it where all is computed, and counts add up."""
    engine = shared_engine
    documents = [words(length, 30 + i) for i, length in enumerate(lengths)]
    text, spans = words(before, 1), []
    rows = [compute_in_full(engine, text).rows] if text else []
    for document in documents:
        spans.append(range(len(text), len(text) + len(document)))
        rows.append(compute_in_full(engine, document).rows)
        text = text + document
    foreign = [at for span in spans if span.start for at in span]
    text += words(after, 2)
    parts = torch.cat([*rows, torch.zeros_like(compute_in_full(engine, [1]).rows).expand(after, -1, -1, -1, -1)])
    made = reconcile(engine.decoder, engine.rotary, text, parts, spans, share)
    right = compute_in_full(engine, text)
    assert torch.equal(made.cache.rows[:, 0], right.rows[:, 0])
    assert torch.equal(made.cache.rows[:before], right.rows[:before])
    assert len(made.recomputed) == round(share * len(foreign)) + after
    assert {*made.recomputed} <= {*foreign, *range(len(text) - after, len(text))}
    if share == 1.0 or not foreign:
        assert torch.allclose(made.cache.rows, right.rows, atol=1e-4)
        assert made.probe < 1e-6
    elif share == 0.0 and max(lengths) > 8:
        assert not torch.allclose(made.cache.rows, right.rows, atol=1e-4)
        assert made.probe > 1e-3


@pytest.mark.slow
def test_the_real_model(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    loaded = registry.load(registry.add(smollm2_source(), name="smollm2"))
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        engine = build_engine(loaded, store, index)
        made = check_the_candidates(engine, least_error=0.01)
        curve = [measured(made, share) for share in (0.0, 0.2, 1.0)]
        assert all((error.layers[0].k, error.layers[0].v) == (0.0, 0.0) for error in curve)
        mean = [sum(layer.k + layer.v for layer in error.layers) for error in curve]
        assert mean[0] > mean[1] > mean[2]
        assert worst(curve[0]) > 0.05
        assert worst(curve[2]) < 1e-3
        root, _ = splice_approximately(
            engine, made.origin, made.text, made.rows, share=0.2, measured=False, title="s", created=""
        )
        approximate = [step.cid for step in walk(store, load_root(store, root))]
        assert resume(engine, root).approx is not None
        # The exact one was recorded as well: it alone is found, before and after the index is made again.
        for _ in range(2):
            known = index.lookup_chain(prefix_keys(engine.model_cid, made.text.tokens, 16), engine.domain.name)
            assert len(known) == len(made.text.tokens) // 16
            assert not {*known[len(BEFORE) // 16 + 1 :]} & {*approximate}
            index.rebuild(store)
