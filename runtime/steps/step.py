"""One forward for rows of several conversations, each row canonical.

A canonical row's bytes do not depend on the rows that go through the linear layers with it, as long as there are
enough, nor on their order: so rows of different conversations, and at any positions, may share a step. Attention
follows the rule of `attention.panels`, each row over its own conversation.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.panels import ASKING_ROWS, PANEL_KEYS, flash, join, seen_from, step_rows
from ..models.decoder import Decoder
from ..quant import packed
from ..rotated import RotatedSequence, rotated
from ..sequence import Sequence
from .seats import Seats


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one conversation that go through a step."""

    sequence: Sequence
    start: int
    """Position of the first: for a prompt a block boundary, for a seated sequence anywhere in its panel."""
    tokens: tuple[int, ...]
    seated: bool
    """Through a seat: nothing is written to the pool before `settle`. Else rows of a prompt, written as they come."""


@dataclass(frozen=True, slots=True)
class _Past:
    """A seated span whose conversation began before its panel."""

    seat: int
    sequence: RotatedSequence
    panel: int
    first: int
    rows: int


class Step:
    """A forward over spans, and the cache it runs against. Seats are taken and tables cover the spans before."""

    def __init__(self, decoder: Decoder, seats: Seats, spans: Tokens[Span], floor_rows: int) -> None:
        """Prepare a step of at least `floor_rows` rows: what the known-answer test found (`Domain.floor_rows`)."""
        self._decoder, self._floor_rows = decoder, floor_rows
        self.prompts = [span for span in spans if not span.seated]
        self.seated = [span for span in spans if span.seated]
        self._seats = seats
        if self.seated:
            self._place()

    def _place(self) -> None:
        """Work out, once for all layers, where rows go and what they see. Seats are counted from the first used one."""
        config, rotary = self._decoder.config, rotated(self.seated[0].sequence).rotary
        self._rotary = rotary
        numbers = [self._seats.number(span.sequence) for span in self.seated]
        first = min(numbers)
        self._used = slice(first, max(numbers) + 1)
        self._most = max(len(span.tokens) for span in self.seated)
        self._group = config.num_heads // config.num_kv_heads
        seat, rank, positions = list[int](), list[int](), list[int]()
        self._past = list[_Past]()
        for number, span in zip(numbers, self.seated, strict=True):
            panel = span.start // PANEL_KEYS * PANEL_KEYS
            if span.start + len(span.tokens) > panel + PANEL_KEYS:
                raise ValueError("a span of a seated sequence crosses a panel")
            seat += [number - first] * len(span.tokens)
            rank += range(len(span.tokens))
            positions += range(span.start, span.start + len(span.tokens))
            if panel:
                past = _Past(number - first, rotated(span.sequence), panel, span.start - panel, len(span.tokens))
                self._past.append(past)
        self._seat, self._rank, self._positions = torch.tensor(seat), torch.tensor(rank), torch.tensor(positions)
        self._slot, self._offset = self._seat + first, self._positions % PANEL_KEYS
        self._cos, self._sin = rotary.cos[self._positions], rotary.sin[self._positions]
        self._packing = self.seated[0].sequence.pool.packing
        shape = (2, config.num_layers, len(positions), config.num_kv_heads, self._packing.width)
        self._raw = torch.empty(shape, dtype=self._packing.stored_dtype)
        self._masks = {kind.window: self._mask(kind.window) for kind in set(config.layers)}

    @torch.no_grad()
    def run(self) -> list[Tensor]:
        """Compute. Returns hidden states for each span, prompts first. Shapes: [tokens, hidden_size] each.

        Effects: rows of prompts are in the pool, beyond what their conversations count as theirs; those of seated spans
        are in their panels, and in the pool only after `settle`.
        """
        for span in self.prompts:
            span.sequence.reserve(span.start + len(span.tokens) + self._floor_rows)
        spans = [*self.prompts, *self.seated]
        tokens = [token for span in spans for token in span.tokens]
        rows = torch.zeros(step_rows(len(tokens), self._floor_rows), dtype=torch.int64)
        rows[: len(tokens)] = torch.tensor(tokens)
        hidden = self._decoder.forward(rows, 0, len(tokens), self)
        return list(torch.split(hidden[: len(tokens)], [len(span.tokens) for span in spans]))

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:  # noqa: ARG002
        """See `KvCache`; rows stand in the order of the spans."""
        heads = self._decoder.config.num_heads
        out = qk.new_zeros(qk.shape[0], heads * qk.shape[2])
        at = 0
        for span in self.prompts:
            count = len(span.tokens)
            here, there = qk[at : at + count], v[at : at + count]
            if count < self._floor_rows:  # for attention it stands alone
                missing = (0, 0, 0, 0, 0, self._floor_rows - count)
                here, there = F.pad(here, missing), F.pad(there, missing)
            out[at : at + count] = rotated(span.sequence).attend(layer, span.start, here, there, count)[:count]
            at += count
        if self.seated:
            out[at:rows] = self._attend_seated(layer, qk[at:rows], v[at:rows])
        return out

    def _attend_seated(self, layer: int, qk: Tensor, v: Tensor) -> Tensor:
        config, group, most = self._decoder.config, self._group, self._most
        kind, heads = config.layers[layer], config.num_heads
        rows = packed(self._packing, qk, v, heads)
        self._raw[0, layer], self._raw[1, layer] = rows.k, rows.v
        qk, v = rows.qk, rows.seen_v
        if kind.rotated:
            qk = self._rotary.turn(qk, self._cos, self._sin)
        panels = self._seats.panels[layer]
        panels[self._slot, 0, :, self._offset] = qk[:, heads:]
        panels[self._slot, 1, :, self._offset] = v
        panels, mask = panels[self._used], self._masks[kind.window]
        seats, kv_heads, head_dim = panels.shape[0], config.num_kv_heads, config.head_dim
        by_rank = qk.new_zeros(seats, most, kv_heads, group, head_dim)
        by_rank[self._seat, self._rank] = qk[:, :heads].view(-1, kv_heads, group, head_dim)
        asking = qk.new_zeros(seats, kv_heads, mask.shape[2], head_dim)
        asking[:, :, : most * group] = by_rank.transpose(1, 2).reshape(seats, kv_heads, most * group, head_dim)
        out, lse = _flash(asking, panels[:, 0], panels[:, 1], mask, config.scale)
        if self._past and kind.window is None:
            self._join_past(layer, asking, out, lse)
        elif self._past:
            self._attend_window(layer, kind.window or 0, asking, panels, out)
        by_rank = out[:, :, : most * group].reshape(seats, kv_heads, most, group, head_dim).transpose(1, 2)
        return by_rank[self._seat, self._rank].reshape(qk.shape[0], heads * head_dim)

    def _join_past(self, layer: int, asking: Tensor, out: Tensor, lse: Tensor) -> None:
        """Join what each row sees before its panel to `out`, where it sees something."""
        parts = [
            flash(asking[past.seat], *past.sequence.keys_values(layer, 0, past.panel), None, self._decoder.config.scale)
            for past in self._past
        ]
        seats = torch.tensor([past.seat for past in self._past])
        before, before_lse = torch.stack([part for part, _ in parts]), torch.stack([part for _, part in parts])
        out[seats] = join(before, before_lse, out[seats], lse[seats]).to(out.dtype)

    def _attend_window(self, layer: int, window: int, asking: Tensor, panels: Tensor, out: Tensor) -> None:
        """Attend again, in one call, where the keys of a window may begin before the panel."""
        for past in self._past:
            seen = seen_from(past.panel, window)
            if seen == past.panel:
                continue
            keys, values = past.sequence.keys_values(layer, seen, past.panel)
            keys, values = (torch.cat((before[:, : past.panel - seen], panel), dim=1)
                            for before, panel in zip((keys, values), panels[past.seat], strict=True))  # fmt: skip
            mask = _row_masks([(past.panel - seen + past.first, past.rows)], self._group, asking.shape[2],
                              keys.shape[1], window, asking.dtype)  # fmt: skip
            out[past.seat], _ = flash(asking[past.seat], keys, values, mask, self._decoder.config.scale)

    def _mask(self, window: int | None) -> Tensor:
        """Mask of all used seats over their own panels."""
        spans = [(0, 0)] * (self._used.stop - self._used.start)
        for span in self.seated:
            spans[self._seats.number(span.sequence) - self._used.start] = (span.start % PANEL_KEYS, len(span.tokens))
        multiple = max(self._floor_rows, ASKING_ROWS)
        folded = -(-self._most * self._group // multiple) * multiple
        return _row_masks(spans, self._group, folded, PANEL_KEYS, window, self._cos.dtype)

    def settle(self, span: Span, rows: range) -> None:
        """Write rows of a seated span, by their number in it, to the pool. Others leave no trace there."""
        pool, size = rotated(span.sequence).pool, span.sequence.pool.geometry.block_size
        at = 0
        for each in self.seated:
            if each is span:
                break
            at += len(each.tokens)
        raw = self._raw[:, :, at + rows.start : at + rows.stop]
        for i, row in enumerate(rows):
            block, offset = divmod(span.start + row, size)
            pool.rows[span.sequence.table[block], : raw.shape[1], :, offset] = raw[:, :, i].transpose(0, 1)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within the panels of all seats at once; each is computed as if alone.

    Shapes: q [seats, kv_heads, rows, head_dim], k and v [seats, kv_heads, 256, head_dim] -> same as q, [..., rows, 1].
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - gives the log-sum-exp
        q, k, v, dropout_p=0.0, is_causal=False, attn_mask=mask, scale=scale
    )
    return out, lse[..., None]


def _row_masks(
    spans: Tokens[tuple[int, int]], group: int, folded: int, keys: int, window: int | None, dtype: torch.dtype
) -> Tensor:
    """Mask for spans of (first row's own key, rows), one for each seat. Shape: [seats, 1, folded, keys].

    Rows that a seat has less than the others are left open, for a row that sees nothing would be NaN.
    """
    own = torch.full((len(spans), folded // group), keys - 1)
    least = torch.full_like(own, -1)
    for seat, (first, rows) in enumerate(spans):
        own[seat, :rows] = torch.arange(first, first + rows)
        if window is not None:
            least[seat, :rows] = own[seat, :rows] - window
    columns = torch.arange(keys)
    visible = (columns <= own[..., None]) & (columns > least[..., None])
    mask = torch.zeros(len(spans), 1, folded, keys, dtype=dtype)
    mask[:, 0, : own.shape[1] * group].masked_fill_(~visible.repeat_interleave(group, dim=1), float("-inf"))
    return mask
