"""Several who record the same text at once: the first seal of a block wins, and the others have the same block."""

import json
from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest
import torch

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.verdict import Tier, Verdict
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry
from tests.forked import Forked

Engines = Callable[..., Engine]
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(200)]
OTHERS = [*TOKENS[:64], *((17 * i * i + 3) % 250 for i in range(136))]


@pytest.mark.parametrize("theirs", [TOKENS, OTHERS], ids=["same", "control"])
def test_the_first_seal_wins_and_others_adopt(
    theirs: list[int], tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine over the same home, as in another process, overtakes one that has stored four blocks."""
    monkeypatch.setattr("cyberkv.runtime.appending.CHUNK_TOKENS", 64)
    slow, fast = Live(tiny_engine()), Live(tiny_engine())
    assert slow.engine.pool is not fast.engine.pool
    index, same = slow.engine.index, theirs is TOKENS

    def overtake(_done: int, _total: int) -> None:
        if not fast.tokens:
            while len(list(index.entries())) < 4:  # a thread stores them
                sleep(0.001)
            fast.append(theirs)

    slow.append(TOKENS, overtake)
    assert [each.verdict for each in fast.counts.executed] == [Verdict.FAULT] * 4 + [Verdict.RECOMPUTE] * 8
    assert [each.verdict for each in slow.counts.executed] == [Verdict.RECOMPUTE] * 12
    assert (fast.counts.blocks_new, slow.counts.blocks_new) == ((8, 4) if same else (8, 12))
    assert (slow.blocks == fast.blocks) is same
    assert torch.equal(slow.next_logits(), fast.next_logits()) is same
    assert len({each.block for each in index.entries()}) == (12 if same else 20)
    assert (index.divergences(), list(index.check())) == ([], [])
    third = Live(slow.engine)
    third.append(TOKENS)
    assert ([each.tier for each in third.counts.executed], third.counts.blocks_new) == ([Tier.L0] * 12, 0)
    for live in (slow, fast, third):
        assert live.engine.residency.check_integrity() == []


def test_processes_at_once_over_one_home(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    Registry(tmp_path / "models").add(tiny("llama"))
    line, module = [tmp_path / "models", tmp_path, 1, 130, "home"], "tests.numerics.worker"
    writers = [Forked([*line, schedule], module=module) for schedule in ("chunks", "decode")]
    told = [json.loads(each.communicate()[0])[0] for each in writers]
    assert told[0]["blocks"] == told[1]["blocks"]
    with Index(tmp_path / "home" / "index") as index, DiskStore(tmp_path / "home" / "store") as store:
        assert {str(each.block) for each in index.entries()} == {*told[0]["blocks"]}
        assert (index.divergences(), list(index.check()), list(store.check())) == ([], [], [])
