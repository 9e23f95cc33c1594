"""How wrong an approximate text is: its rows and its next scores against those of computing it in full."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from ..canonical import CHUNK_TOKENS, canonical_step
from ..engine import Engine
from ..live import Live
from ..pool import Pool, on_host
from ..rings.archive import bring_back
from .scattered import ScatteredCache


@dataclass(frozen=True, slots=True)
class LayerError:
    """Distance of a layer's K and V from the right ones, over the tokens from the first document on, relative."""

    k: float
    v: float


@dataclass(frozen=True, slots=True)
class SpliceError:
    """What an approximation is off by. All zero for an exact one."""

    layers: tuple[LayerError, ...]
    logits_max_abs: float
    """Largest difference among the scores of the next token."""
    kl: float
    """Kullback-Leibler divergence of the next token's distribution from the right one, in nats."""
    same_choice: bool
    """Whether the likeliest token is the same: weak, as a splice that is far off may still agree."""


@dataclass(frozen=True, slots=True)
class Text:
    """A computed text. Shapes: rows [tokens, layers, K|V, kv_heads, head_dim], logits [vocab_size] float32."""

    rows: Tensor
    logits: Tensor


def copy_rows(live: Live, count: int) -> Tensor:
    """Copy the raw rows of a conversation's first tokens; archived ones are read from the store.

    Shape: [count, layers, K|V, kv_heads, head_dim]. Raises as `bring_back`.
    """
    engine, table = live.engine, live.sequence.table
    pool = on_host(engine.pool, "splicing")
    full = min(len(live.blocks), -(-count // engine.geometry.block_size))
    bring_back(engine.residency, table, live.blocks, 0, full)
    return _copy(pool, table, count)


def _copy(pool: Pool, table: list[int], count: int) -> Tensor:
    g = pool.geometry
    stored = pool.rows[torch.tensor(table[: -(-count // g.block_size)], dtype=torch.int64)]
    blocks = pool.packing.unpack(stored)
    # Pool rows are block-major: [blocks, layers, K|V, block_size, kv_heads, head_dim].
    rows = blocks.permute(0, 3, 1, 2, 4, 5).reshape(-1, g.num_layers, 2, g.num_kv_heads, g.head_dim)
    return rows[:count].contiguous()


def compute_in_full(engine: Engine, tokens: Items[int]) -> Text:
    """Compute a text canonically, as if none of it were known; nothing is stored. Raises `TierFull`."""
    sequence = engine.new_sequence()
    hidden = torch.empty(0)
    try:
        sequence.extend_table(len(tokens))
        for start in range(0, len(tokens), CHUNK_TOKENS):
            hidden = canonical_step(engine.decoder, sequence, tokens[start : start + CHUNK_TOKENS], start)[-1].clone()
        return Text(_copy(on_host(engine.pool, "splicing"), sequence.table, len(tokens)), engine.decoder.logits(hidden))
    finally:
        sequence.release()


def text_of(engine: Engine, tokens: Items[int], cache: ScatteredCache) -> Text:
    """Give an approximate text with its next scores."""
    hidden = cache.compute(engine.decoder, tokens, [len(tokens) - 1], frozen=True)
    return Text(cache.rows, engine.decoder.logits(hidden))


def error_of(text: Text, right: Text, start: int) -> SpliceError:
    """Compare a text with the right one, its rows from position `start` on."""
    layers = []
    for layer in range(right.rows.shape[1]):
        k, v = (
            _relative(text.rows[start:, layer, part].double(), right.rows[start:, layer, part].double())
            for part in (0, 1)
        )
        layers.append(LayerError(k, v))
    ours, theirs = text.logits.double(), right.logits.double()
    expected = theirs.log_softmax(-1)
    kl = float((expected.exp() * (expected - ours.log_softmax(-1))).sum())
    return SpliceError(
        tuple(layers), float((ours - theirs).abs().max()), max(0.0, kl), bool(ours.argmax() == theirs.argmax())
    )


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(torch.finfo(torch.float64).tiny))
