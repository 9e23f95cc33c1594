"""Re-blocking moves rows without computing them, and arrives at the names that recording would have given."""

from collections.abc import Callable

import pytest
import torch

from cyberkv.cybergraph.chain import block_cids, build_root, load_root, tokens, walk
from cyberkv.cybergraph.errors import IdentityMismatch, Refused
from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, IndexEntry
from cyberkv.cybergraph.nodes import EMPTY_TAIL
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.reblock import reblock
from tests.numerics.poison import forge

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


@pytest.mark.parametrize("new", [8, 32])
def test_a_block_of_rows_from_elsewhere_is_nobody_s_after_it_either(
    new: int, tiny_engine: Callable[..., Engine]
) -> None:
    there, here = tiny_engine(home="there"), tiny_engine(home="here")
    for engine, length in ((there, 128), (here, 80)):
        Live(engine).append(TOKENS[:length])
    live = Live(there)
    live.append(TOKENS[:128])
    blocks = forge(there.store, here.store, live.blocks, {(at, 0): (3, 2.0) for at in range(5, 8)})
    here.index.add_blocks(
        IndexEntry(key, block, prev, here.model_cid, UNKNOWN_DOMAIN)
        for key, block, prev in zip(live.prefixes[5:], blocks[5:], blocks[4:], strict=False)
    )
    root = build_root(
        here.store, model=here.model_cid, block_size=16, blocks=blocks, tail=EMPTY_TAIL, title="", created="",
        payload_bytes=1 << 30,
    )  # fmt: skip
    moved = list(block_cids(here.store, load_root(here.store, reblock(here.store, here.index, root, new))))
    own = 80 // new  # a block that is half of each counts with what is not
    domains = [here.domain.name] * own + [UNKNOWN_DOMAIN] * (128 // new - own)
    assert [here.index.domain_of(cid) for cid in moved] == domains
    native = tiny_engine(home="here", block_size=new)
    again = Live(native)
    again.append(TOKENS[:128])
    assert again.blocks[:own] == moved[:own]
    assert moved[own] not in again.blocks
    assert again.counts.tokens_reused == own * new
