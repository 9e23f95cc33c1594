"""What the tests of edits share: two engines with nothing in common, and all that can be compared bit for bit."""

from collections.abc import Callable, Iterator

import pytest
import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.checkpoint import checkpoint
from cyberkv.runtime.edits.evict import evict
from cyberkv.runtime.edits.receipt import Cut, Mode
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.rings.archive import bring_back
from cyberkv.runtime.rings.window import first_live
from tests.numerics.tiny import tiny_model

SIZE = 16
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(400)]
Engines = Callable[..., Engine]
CUTS = [Cut(16, 48), Cut(20, 53), Cut(0, 16), Cut(7, 9), Cut(64, 70), Cut(90, 100), Cut(0, 99)]
"""Aligned, not aligned, at the start, inside one block, at the end of a block, in the tail, all but one."""


def started(engine: Engine, tokens: list[int]) -> Live:
    live = Live(engine)
    live.append(tokens)
    return live


def without(tokens: list[int], *cuts: Cut) -> list[int]:
    return [token for at, token in enumerate(tokens) if not any(cut.start <= at < cut.end for cut in cuts)]


def rows(live: Live) -> torch.Tensor:
    """Raw K and V of every token. Shape: [tokens, num_layers, K|V, kv_heads, head_dim]."""
    engine, table = live.engine, live.sequence.table
    bring_back(engine.residency, table, live.blocks, 0, len(live.blocks))
    blocks = engine.pool.rows[torch.tensor(table, dtype=torch.int64)]
    return blocks.permute(0, 3, 1, 2, 4, 5).flatten(0, 1)[: len(live.tokens)].clone()


def hot(live: Live) -> list[torch.Tensor]:
    """Rotated K, and V, of every token that the layer still reads. Shape of each: [K|V, kv_heads, rows, head_dim]."""
    length = len(live.tokens)
    return [
        torch.stack(live.sequence.keys_values(layer, first_live(kind.window, length), length)).clone()
        for layer, kind in enumerate(live.engine.config.layers)
    ]


def alike(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


def record(live: Live) -> Cid:
    return checkpoint(live, title="test", created="2026-01-01T00:00:00Z")


def same(one: Live, two: Live) -> bool:
    """Whether all that can be asked of two conversations is equal, bit for bit."""
    return (
        one.tokens == two.tokens
        and one.blocks == two.blocks
        and torch.equal(rows(one), rows(two))
        and alike(hot(one), hot(two))
        and torch.equal(one.next_logits(), two.next_logits())
    )


def load_layers(layers: int, folders: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_model("llama", folders.mktemp("model"), num_hidden_layers=layers)
    registry = Registry(folders.mktemp("models"))
    return registry.load(registry.add(folder, name="tiny"))


def two_engines(loaded: LoadedModel, folders: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    one, two = folders.mktemp("one"), folders.mktemp("two")
    with (
        DiskStore(one / "store") as store, Index(one / "index") as index,
        DiskStore(two / "store") as other_store, Index(two / "index") as other_index,
    ):  # fmt: skip
        first = build_engine(loaded, store, index, capacity_tokens=2048)
        second = build_engine(loaded, other_store, other_index, capacity_tokens=2048, domain=first.domain)
        yield first, second
        assert first.pool.used_blocks == second.pool.used_blocks == 0


def compare(one: Engine, two: Engine, tokens: list[int], cuts: list[Cut], mode: Mode) -> None:
    """Evict here, never see there: equal. Keep the span there, too: not equal."""
    live, never = started(one, tokens), started(two, without(tokens, *cuts))
    receipt = evict(live, cuts, mode)
    assert receipt.exact
    assert same(live, never)
    poisoned = started(two, tokens)
    assert not torch.equal(poisoned.next_logits(), never.next_logits())
    live.append(TOKENS[:20])
    never.append(TOKENS[:20])
    assert same(live, never)
    for each in (live, never, poisoned):
        each.close()
