"""Where in the pool a block lies decides nothing: attention sees integers, and every placement gives the same bytes."""

import inspect
import random
import typing
from pathlib import Path

import pytest
import torch

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.attention import panels
from cyberkv.runtime.engine import build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry
from cyberkv.runtime.sampling import Sampling
from tests.numerics.tiny import tiny_model

TEXT = [(37 * i + 11) % 256 for i in range(150)]


def recorded(folder: Path, home: Path, order: random.Random | None) -> tuple[list[str], torch.Tensor, list[int]]:
    """Record a text over a pool whose free rows are handed out in some order."""
    registry = Registry(home / "models")
    record = registry.add(folder, name="tiny")
    with Index(home / "index") as index:
        engine = build_engine(registry.load(record), MemoryStore(), index)
        if order is not None:
            order.shuffle(engine.pool._free)
        live = Live(engine)
        live.append(TEXT)
        list(live.generate(20, Sampling()))
        return [str(cid) for cid in live.blocks], live.next_logits(), list(live.sequence.table)


@pytest.mark.parametrize("family", ["llama", "mistral", "smollm3-window"])
def test_any_placement_of_blocks_gives_the_same_bytes(family: str, tmp_path: Path) -> None:
    folder = tiny_model(family, tmp_path / "model")
    blocks, logits, table = recorded(folder, tmp_path / "in-order", None)
    for seed in range(2):
        moved_blocks, moved_logits, moved = recorded(folder, tmp_path / str(seed), random.Random(seed))
        assert moved != table  # or nothing was shown
        assert moved_blocks == blocks
        assert torch.equal(moved_logits, logits)


def test_attention_takes_tensors_and_integers_alone() -> None:
    plain = {torch.Tensor, int, float, int | None, torch.Tensor | None, torch.dtype}
    for name in ("flash", "panel_attention"):
        hints = typing.get_type_hints(getattr(panels, name))
        hints.pop("return")
        assert set(hints.values()) <= plain, name
    assert "cybergraph" not in inspect.getsource(panels)  # so there is no hash that it could be given
