"""The warm ladder: a prefix in each tier is used from there alone, with the scores of a prefill beside it."""

from collections.abc import Callable

import pytest
import torch

from cyberkv.benchmarks.bench_ladder import first_token, hops_of, know, settle
from cyberkv.cybergraph.peers.local import StorePeer
from cyberkv.cybergraph.store.wrap import CountingStore
from cyberkv.cybergraph.verdict import Tier, Verdict
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live

Engines = Callable[..., Engine]
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(160)]
OTHERS = [(17 * i * i + 3 * i + 1) % 250 for i in range(160)]
BLOCKS = 10


@pytest.mark.parametrize("tier", Tier)
def test_each_rung_reads_its_own_tier_and_the_miss_reads_none(tier: Tier, tiny_engine: Engines) -> None:
    recorded = Live(tiny_engine(home="far"))
    recorded.append(TOKENS)
    far, near = recorded.engine.store, tiny_engine(home="near")
    store = near.store = CountingStore(near.store)
    asked = CountingStore(far)
    near.host_bytes = BLOCKS * near.geometry.block_bytes
    near.sources, near.may_ask = [StorePeer(asked)], lambda _: True
    know(near.index, near, TOKENS, recorded.blocks)
    settle(near, recorded.blocks, tier)
    located = near.residency.locate(recorded.blocks)
    assert [each.tier for each in located.places] == [tier] * BLOCKS
    store.counts.clear()
    asked.counts.clear()
    token, hops = first_token(near, TOKENS)
    assert hops == hops_of(tier, BLOCKS)
    assert token == int(recorded.next_logits().argmax())
    assert bool(store.counts["get_into"]) is (tier >= Tier.L2)
    assert bool(asked.counts["bytes_got"]) is (tier is Tier.L3)
    again = Live(near)
    again.append(TOKENS)
    assert torch.equal(again.next_logits(), recorded.next_logits())
    assert again.counts.tokens_computed == 0
    # The miss control: other tokens take nothing from any tier.
    miss = Live(near)
    miss.append(OTHERS)
    assert {each.verdict for each in miss.counts.executed} == {Verdict.RECOMPUTE}
    assert not torch.equal(miss.next_logits(), recorded.next_logits())
    assert near.residency.log.blocks[None, Tier.L0] == BLOCKS
