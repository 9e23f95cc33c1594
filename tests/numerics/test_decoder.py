"""The decoder against transformers: same weights, one pass over the prompt, then token by token."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cyberkv.runtime.models.config import DecoderConfig
from cyberkv.runtime.models.decoder import Decoder
from cyberkv.runtime.rope import Rotary

from .tiny import FAMILIES, load_tiny, load_transformers

TOKENS = [(31 * i * i + 7 * i + 3) % 250 for i in range(70)]


class OnePassCache:
    """K and V of one pass, attention by one library call over all keys: what transformers does."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self.rotary = Rotary(
            config.head_dim, config.rope_base, dict(config.rope_scaling), config.max_positions, torch.float32
        )
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}

    def put(self, layer: int, start: int, k: Tensor, v: Tensor, rows: int) -> None:
        if self.config.layers[layer].rotated:
            k = self.rotary.rotate(k, start)
        self.k[layer] = torch.cat((self.k[layer], k)) if start else k
        self.v[layer] = torch.cat((self.v[layer], v)) if start else v

    def attend(self, layer: int, start: int, q: Tensor) -> Tensor:
        kind = self.config.layers[layer]
        if kind.rotated:
            q = self.rotary.rotate(q, start)
        rows = torch.arange(start, start + q.shape[0])[:, None]
        keys = torch.arange(self.k[layer].shape[0])[None, :]
        mask = keys <= rows
        if kind.window is not None:
            mask &= keys > rows - kind.window
        whole = kind.window is None or keys.shape[1] <= kind.window
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            self.k[layer].transpose(0, 1)[None],
            self.v[layer].transpose(0, 1)[None],
            attn_mask=None if whole else mask,
            is_causal=whole and q.shape[0] > 1,
            scale=self.config.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(q.shape[0], -1)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_one_pass_and_decode_are_bit_equal_to_transformers(family: str, tiny_folder: dict[str, Path]) -> None:
    config, weights = load_tiny(tiny_folder[family])
    theirs = load_transformers(tiny_folder[family])
    decoder, cache = Decoder(config, weights), OnePassCache(config)
    hidden = decoder.forward(torch.tensor(TOKENS), 0, len(TOKENS), cache)
    answer = theirs(torch.tensor([TOKENS]), use_cache=True)
    expected = answer.logits[0, -1]
    assert torch.equal(decoder.logits(hidden[-1]), theirs.lm_head(_final(theirs, TOKENS))), family
    torch.testing.assert_close(decoder.logits(hidden[-1]), expected, rtol=0, atol=2e-5)
    for layer, (k, v) in enumerate(_keys_and_values(answer)):
        kept = k.shape[2]
        assert torch.equal(cache.k[layer].transpose(0, 1)[None, :, -kept:], k), (family, layer)
        assert torch.equal(cache.v[layer].transpose(0, 1)[None, :, -kept:], v), (family, layer)


@torch.no_grad()
def _final(model: torch.nn.Module, tokens: list[int]) -> Tensor:
    return model.model(torch.tensor([tokens])).last_hidden_state[0, -1:].clone()[0:1][0][None][0]  # type: ignore[no-any-return, operator, union-attr]


def _keys_and_values(answer: object) -> list[tuple[Tensor, Tensor]]:
    cache = answer.past_key_values  # type: ignore[attr-defined]
    return [(layer.keys, layer.values) for layer in cache.layers]
