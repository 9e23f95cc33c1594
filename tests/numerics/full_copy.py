"""The oracle for windows: every layer has every rotated row at its position, for good."""

from collections.abc import Callable

import torch
from torch import Tensor

from cyberkv.cybergraph.cid import Cid
from cyberkv.runtime.attention.panels import PANEL_KEYS, panel_attention
from cyberkv.runtime.checkpoint import checkpoint
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.quant import packed
from cyberkv.runtime.rotated import RotatedSequence

SIZE, WINDOW = 16, 8
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(4000)]
Engines = Callable[..., Engine]


class FullCopySequence(RotatedSequence):
    """A sequence without rings and without an archive."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        c = self.config
        capacity = (c.max_positions // PANEL_KEYS + 2) * PANEL_KEYS
        self.hot = torch.zeros(2, c.num_layers, c.num_kv_heads, capacity, c.head_dim, dtype=self.pool.packing.dtype)

    @classmethod
    def of(cls, engine: Engine) -> "FullCopySequence":
        return cls(engine.config, engine.rotary, engine.pool, engine.memory)

    def reserve(self, length_tokens: int) -> None:
        pass

    def archive(self, blocks: int) -> None:
        pass

    def unread_blocks(self, blocks: int) -> int:
        return 0

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:
        kind, heads = self.config.layers[layer], self.config.num_heads
        if not self.frozen:
            made = packed(self.pool.packing, qk, v, heads)
            self._store(layer, start, made.k[:rows], made.v[:rows])
            qk, v = made.qk, made.seen_v
        if kind.rotated:
            qk = self.rotary.rotate(qk, start)
        if not self.frozen:
            self.write(layer, start, qk[:, heads:], v)
        return panel_attention(qk[:, :heads], *self.hot[:, layer], start, kind.window, self.config.scale)

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        self.hot[0, layer, :, start : start + k.shape[0]] = k.transpose(0, 1)
        self.hot[1, layer, :, start : start + v.shape[0]] = v.transpose(0, 1)

    def heat_blocks(self, first: int, last: int) -> None:
        for block in range(first, last):
            self.heat_rows(block * self.pool.geometry.block_size, self.pool.geometry.block_size)

    def heat_rows(self, start: int, count: int) -> None:
        row = self.pool.packing.unpack(self.pool.rows[self.table[start // self.pool.geometry.block_size]])
        for layer, kind in enumerate(self.config.layers):
            k = row[layer, 0, :count]
            self.write(layer, start, self.rotary.rotate(k, start) if kind.rotated else k, row[layer, 1, :count])


def started(engine: Engine, tokens: list[int], *, full: bool = False) -> Live:
    live = Live(engine)
    if full:
        live.sequence = FullCopySequence.of(engine)
    live.append(tokens)
    return live


def record(live: Live) -> Cid:
    return checkpoint(live, title="test", created="2026-01-01T00:00:00Z")


def decode(tokens: list[int]) -> Callable[[Live], None]:
    def work(live: Live) -> None:
        for token in tokens:
            live.decode(token)
            live.next_logits()

    return work
