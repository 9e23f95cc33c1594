"""What is approximate is never found by its text, whatever is killed, re-blocked or built on it."""

from collections.abc import Callable

import pytest

from cyberkv.cybergraph.chain import load_root, walk
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.runtime.checkpoint import resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.reblock import reblock, reblocked
from cyberkv.runtime.splice.place import splice_approximately, splice_exactly
from tests.numerics.test_splice import BEFORE, case, cold, record, words


def test_what_is_approximate_is_never_found(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine())
    engine, tokens_of_text = made.engine, made.text.tokens
    root, _ = splice_approximately(
        engine, made.origin, made.text, made.rows, share=0.2, measured=False, title="s", created=""
    )
    approximate = [step.cid for step in walk(engine.store, load_root(engine.store, root))]
    keys = list(prefix_keys(engine.model_cid, tokens_of_text, 16))
    shared = len(BEFORE) // 16
    assert engine.index.lookup_chain(keys, engine.domain.name) == approximate[:shared]
    assert all(not {entry.block for entry in engine.index.lookup(key)} & {*approximate[shared:]} for key in keys)
    engine.index.rebuild(engine.store)
    assert engine.index.lookup_chain(keys, engine.domain.name) == approximate[:shared]
    # The control: the same tokens computed are found, and are other blocks.
    exact, _ = splice_exactly(engine, made.text)
    assert engine.index.lookup_chain(keys, engine.domain.name) == exact.blocks
    # (The block in which the first document begins may have the right bytes: only right rows come before its own.)
    assert not {*exact.blocks[shared + 1 :]} & {*approximate[shared + 1 :]}
    # What goes on from an approximate conversation stays so, and is not found either.
    live = resume(engine, root)
    assert live.approx is not None
    live.append(words(40, 9))
    assert not any(engine.index.lookup(key) and live.blocks[-1] in {e.block for e in engine.index.lookup(key)}
                   for key in prefix_keys(engine.model_cid, live.tokens, 16))  # fmt: skip


def test_what_is_approximate_is_not_found_in_blocks_of_another_size_either(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine())
    engine = made.engine
    near, _ = splice_approximately(
        engine, made.origin, made.text, made.rows, share=0.2, measured=False, title="s", created=""
    )
    exact = record(engine, made.text.tokens)
    keys = list(prefix_keys(reblocked(engine.model, 64).cid(), made.text.tokens[:256], 64))
    for root, found in ((near, 0), (exact, 4)):
        again = reblock(engine.store, engine.index, root, 64)
        assert load_root(engine.store, again).approx == load_root(engine.store, root).approx
        assert len(engine.index.lookup_chain(keys, engine.domain.name)) == found
        engine.index.rebuild(engine.store)
        assert len(engine.index.lookup_chain(keys, engine.domain.name)) == found


def test_a_crash_before_the_blocks_leaves_nothing_to_find(
    tiny_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = case(tiny_engine())
    engine = made.engine

    def stored_then_killed(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    from cyberkv.runtime.splice import place

    real = place.store_blocks
    monkeypatch.setattr(place, "store_blocks", stored_then_killed)
    with pytest.raises(KeyboardInterrupt):
        splice_approximately(
            engine, made.origin, made.text, made.rows, share=0.2, measured=False, title="s", created=""
        )
    engine.index.rebuild(engine.store)
    found = engine.index.lookup_chain(prefix_keys(engine.model_cid, made.text.tokens, 16), engine.domain.name)
    assert len(found) == len(BEFORE) // 16


def test_what_was_computed_on_top_of_it_and_has_no_root_is_not_found_either(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine())
    engine = made.engine
    root, _ = splice_approximately(
        engine, made.origin, made.text, made.rows, share=0.2, measured=False, title="s", created=""
    )
    live, exact = resume(engine, root), cold(engine, words(300, 6))
    live.append(words(60, 9))
    engine.index.rebuild(engine.store)
    keys = list(prefix_keys(engine.model_cid, live.tokens, 16))
    assert engine.index.lookup_chain(keys, engine.domain.name) == live.blocks[: len(BEFORE) // 16]
    assert not engine.index.lookup(keys[-1])
    # The control: blocks of an exact conversation that has no root either are found.
    keys = list(prefix_keys(engine.model_cid, exact.tokens, 16))
    assert engine.index.lookup_chain(keys, engine.domain.name) == exact.blocks
