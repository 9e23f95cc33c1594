"""Going on from the root of an approximate splice: as it was measured, and counted as what it is."""

from collections.abc import Callable

import pytest

from cyberkv.cybergraph.chain import load_root, tokens
from cyberkv.cybergraph.verdict import Verdict
from cyberkv.runtime.checkpoint import resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.splice.place import splice_approximately
from tests.numerics.test_splice import BEFORE, case, cold


def test_an_approximate_root_resumes_to_what_was_measured(tiny_engine: Callable[..., Engine]) -> None:
    made = case(tiny_engine())
    root, receipt = splice_approximately(
        made.engine, made.origin, made.text, made.rows, share=0.2, measured=True, title="s", created=""
    )
    live = resume(made.engine, root)
    assert live.tokens == made.text.tokens == tokens(made.engine.store, load_root(made.engine.store, root))
    assert receipt.recomputed_tokens + receipt.reused_tokens == len(live.tokens)
    right = cold(made.engine, made.text.tokens).next_logits()
    off = float((live.next_logits() - right).abs().max())
    assert receipt.error is not None
    assert off == pytest.approx(receipt.error.logits_max_abs, abs=1e-3)
    exact, size = len(BEFORE) // 16, 16
    verdicts = [each.verdict for each in live.counts.executed]
    assert verdicts[exact:] == [Verdict.RECONCILED] * (len(live.tokens) // size - exact)
    assert Verdict.RECONCILED not in verdicts[:exact]  # the control: what stands before the documents is exact
    assert {each.error for each in live.counts.executed[exact:]} == {float(f"{receipt.probe:.2g}")}
