"""Rows at any positions: a cache in plain memory over which single tokens of a text can be computed again.

The canonical cache (`sequence`) takes consecutive rows from a block boundary on. Here a step takes whichever positions
it is given, each attending to all rows at or before it, computed or brought along. One library call with a mask does
that; its bytes depend on how many rows and keys are in the call, so what comes out is approximate by construction. Only
the first layer's K and V are those of a canonical step, byte for byte: they are a function of the token alone.
"""

from collections.abc import Sequence as Items

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.panels import FLOOR_ROWS
from ..models.config import DecoderConfig
from ..models.decoder import Decoder
from ..quant import AsComputed, Packing, packed
from ..rope import Rotary

STEP_ROWS = 256
"""Rows of one step: bounds the mask, which has a column for each key."""


class ScatteredCache:
    """K and V of a whole text. Takes ownership of `rows` and changes them.

    Shape: rows [tokens, layers, K|V, kv_heads, head_dim], raw; layers may be fewer than the model has. Rows that are
    computed here are those that reading them back from `packing` would give.
    """

    def __init__(self, config: DecoderConfig, rotary: Rotary, rows: Tensor, packing: Packing | None = None) -> None:
        self.rows = rows
        self._packing = packing or AsComputed(rows.shape[-1], rows.dtype)
        self._config = config
        self._rotary = rotary
        # Contiguous per head, K rotated: what attention reads.
        self._hot = rows.permute(2, 1, 3, 0, 4).contiguous()
        for layer in range(rows.shape[1]):
            if config.layers[layer].rotated:
                self._hot[0, layer] = rotary.rotate(rows[:, layer, 0], 0).transpose(0, 1)
        self._frozen = False
        self._positions = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def compute(self, decoder: Decoder, tokens: Items[int], positions: Items[int], *, frozen: bool = False) -> Tensor:
        """Compute the tokens at ascending `positions` again and put their rows in place; `frozen` leaves the rows.

        Shapes: `tokens` is the whole text -> hidden state of the last position [hidden_size].
        """
        hidden = torch.empty(0)
        self._frozen = frozen
        for start in range(0, len(positions), STEP_ROWS):
            part = torch.tensor(positions[start : start + STEP_ROWS])
            ids = torch.tensor([tokens[at] for at in part.tolist()])
            padding = -part.shape[0] % FLOOR_ROWS  # fewer rows go through other loops of the matrix library
            self._positions = F.pad(part, (0, padding))
            hidden = decoder.forward(F.pad(ids, (0, padding)), 0, part.shape[0], self)[part.shape[0] - 1]
        return hidden

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:  # noqa: ARG002
        """Put raw K and V in place, then attend from each row to all rows at or before its position.

        Shapes as `KvCache.attend`; the positions are those of the step at hand, and `start` means nothing.
        """
        kind, heads, kv_heads = self._config.layers[layer], self._config.num_heads, self._config.num_kv_heads
        at = self._positions[:rows]
        if not self._frozen:
            made = packed(self._packing, qk, v, heads)
            qk, v = made.qk, made.seen_v
            self.rows[at, layer, 0], self.rows[at, layer, 1] = qk[:rows, heads:], v[:rows]
        if kind.rotated:
            rotary = self._rotary
            qk = rotary.turn(qk, rotary.cos[self._positions], rotary.sin[self._positions])
        keys, values = self._hot[0, layer], self._hot[1, layer]
        if not self._frozen:
            keys[:, at], values[:, at] = qk[:rows, heads:].transpose(0, 1), v[:rows].transpose(0, 1)
        last = int(at[-1]) + 1
        columns, own = torch.arange(last)[None, :], self._positions[:, None]
        seen = columns <= own
        if kind.window is not None:
            seen &= columns > own - kind.window
        count, head_dim = qk.shape[0], qk.shape[2]
        group = heads // kv_heads
        asking = qk[:, :heads].reshape(count, kv_heads, group, head_dim).transpose(0, 1)
        out = F.scaled_dot_product_attention(
            asking.reshape(1, kv_heads, count * group, head_dim), keys[None, :, :last], values[None, :, :last],
            attn_mask=seen.repeat_interleave(group, dim=0)[None, None], scale=self._config.scale,
        )  # fmt: skip
        return out.view(kv_heads, count, group, head_dim).transpose(0, 1).reshape(count, heads * head_dim)
