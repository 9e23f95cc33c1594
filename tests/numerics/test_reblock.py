"""Re-blocking moves rows without computing them, and arrives at the names that recording would have given."""

from collections.abc import Callable

import pytest
import torch

from cyberkv.cybergraph.chain import load_root, tokens, walk
from cyberkv.cybergraph.errors import IdentityMismatch, Refused
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.reblock import reblock

TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(300)]


@pytest.mark.parametrize(("old", "new"), [(64, 16), (16, 64), (16, 8), (32, 32)])
@pytest.mark.parametrize("length", [7, 64, 133, 256, 295])
def test_reblocked_is_what_recording_would_have_given(
    old: int, new: int, length: int, tiny_engine: Callable[..., Engine]
) -> None:
    engine = tiny_engine(block_size=old)
    live = Live(engine)
    live.append(TOKENS[:length])
    root = checkpoint(live, title="t", created="")
    if length % old >= new:
        with pytest.raises(Refused, match="not canonical"):
            reblock(engine.store, engine.index, root, new)
        return
    moved = reblock(engine.store, engine.index, root, new)

    native = tiny_engine(block_size=new, home="native")
    expected = Live(native)
    expected.append(TOKENS[:length])
    after = load_root(engine.store, moved)
    # A larger block needs rows that the old tail holds only as tokens: those stay in the new tail.
    steps = list(walk(engine.store, after))
    assert [step.cid for step in steps] == expected.blocks[: len(steps)]
    assert len(steps) == length // old * old // new
    assert tokens(engine.store, after) == TOKENS[:length]

    same_home = tiny_engine(block_size=new)
    if len(steps) == len(expected.blocks):
        assert torch.equal(resume(same_home, moved).next_logits(), expected.next_logits())
    if old != new:
        with pytest.raises(IdentityMismatch) as caught:
            resume(engine, moved)
        assert caught.value.data["field"] == "block_size"
        assert {caught.value.data["expected"], caught.value.data["got"]} == {old, new}


def test_sizes_that_do_not_divide_are_refused(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:40])
    with pytest.raises(Refused, match="blocks of 16 tokens into blocks of 24"):
        reblock(engine.store, engine.index, checkpoint(live, title="t", created=""), 24)
