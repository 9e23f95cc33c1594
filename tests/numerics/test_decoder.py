"""The decoder against transformers: same weights, one pass over the prompt, then token by token."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models import linear
from cyberkv.runtime.models.config import DecoderConfig
from cyberkv.runtime.models.decoder import Decoder
from cyberkv.runtime.models.registry import LoadedModel
from cyberkv.runtime.models.weights import load_weights
from cyberkv.runtime.rope import Rotary
from tests.numerics.tiny import FAMILIES

TOKENS = [(31 * i * i + 7 * i + 3) % 250 for i in range(70)]

CANONICAL_BOUND = 2e-5
"""Largest difference to one library pass, relative to the largest score: both round, in another order."""

ONE_ROW_BOUND = 2e-4
"""Largest difference of one decoded row, which goes through other products here; scores reach 20."""


class OnePassCache:
    """K and V of one pass, attention by one library call over all keys: what transformers does."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self.rotary = Rotary(
            config.rotary_dims, config.rope_base, dict(config.rope_scaling), config.max_positions, torch.float32,
            interleaved=config.is_interleaved,
        )  # fmt: skip
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:
        kind = self.config.layers[layer]
        if kind.rotated:
            qk = self.rotary.rotate(qk, start)
        q, k = qk[:, : self.config.num_heads], qk[:, self.config.num_heads :]
        self.k[layer] = torch.cat((self.k[layer], k)) if start else k
        self.v[layer] = torch.cat((self.v[layer], v)) if start else v
        k, v = self.k[layer], self.v[layer]
        if q.shape[0] == 1 and kind.window is not None:  # one row is given only the keys it sees
            k, v, start = k[-kind.window :], v[-kind.window :], min(start, kind.window - 1)
        rows = torch.arange(start, start + q.shape[0])[:, None]
        keys = torch.arange(k.shape[0])[None, :]
        mask = keys <= rows
        if kind.window is not None:
            mask &= keys > rows - kind.window
        whole = kind.window is None or keys.shape[1] <= kind.window
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=None if whole else mask,
            is_causal=whole and q.shape[0] > 1,
            scale=self.config.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(q.shape[0], -1)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_one_pass_is_bit_equal_to_transformers_and_decode_within_a_bound(
    family: str, load_tiny: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_tiny(family)
    theirs = AutoModelForCausalLM.from_pretrained(loaded.record.source, dtype=torch.float32).eval()
    for parameter in theirs.parameters():
        # A product of one row rounds by the alignment of the matrix in memory; ours is aligned, so is theirs now.
        parameter.data = parameter.data.clone()
    weights, _ = load_weights(loaded.record.source, loaded.config, "f32")
    changed = {**weights, "model.norm.weight": weights["model.norm.weight"] * 1.0001}
    with monkeypatch.context() as patch:  # packed matrices round differently
        patch.setattr(linear, "_PACKS", False)
        decoder, control = (Decoder(loaded.config, dict(each)) for each in (weights, changed))
    cache = OnePassCache(loaded.config)

    hidden = decoder.forward(torch.tensor(TOKENS), 0, len(TOKENS), cache)
    answer = theirs(torch.tensor([TOKENS]), use_cache=True)
    assert torch.equal(_all_logits(decoder, hidden), answer.logits[0])

    for step, token in enumerate((11, 22, 33)):
        hidden = decoder.forward(torch.tensor([token]), len(TOKENS) + step, 1, cache)
        answer = theirs(torch.tensor([[token]]), use_cache=True, cache=answer.past_key_values)
        torch.testing.assert_close(decoder.logits(hidden[-1]), answer.logits[0, -1], rtol=0, atol=ONE_ROW_BOUND)

    assert (control.logits(hidden[-1]) - answer.logits[0, -1]).abs().max() > 2 * ONE_ROW_BOUND


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3-yarn", {"rope_scaling": ()}),
        ("qwen3-yarn", {"rope_scaling": (("factor", "4.0"), ("rope_type", "linear"))}),
        ("glm", {"rotary_dims": 32}),
        ("glm", {"rotary_dims": 8}),
    ],
)
@torch.no_grad()
def test_another_rotation_gives_other_scores(
    family: str, changes: dict[str, Any], load_tiny: Callable[[str], LoadedModel]
) -> None:
    loaded, tokens = load_tiny(family), torch.tensor(TOKENS)
    ours, other = (
        loaded.decoder.forward(tokens, 0, len(TOKENS), OnePassCache(config))[-1]
        for config in (loaded.config, replace(loaded.config, **changes))
    )
    assert (loaded.decoder.logits(ours) - loaded.decoder.logits(other)).abs().max() > 100 * ONE_ROW_BOUND


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[pytest.mark.slow] * (each in ("qwen3-yarn", "glm"))) for each in FAMILIES]
)
@torch.no_grad()
def test_canonical_schedule_stays_within_a_bound_of_one_pass(family: str, tiny_engine: Callable[[str], Engine]) -> None:
    engine = tiny_engine(family)
    tokens = [(17 * i * i + 5 * i + 1) % 250 for i in range(300)]  # two panels
    cache = OnePassCache(engine.config)
    expected = engine.decoder.logits(engine.decoder.forward(torch.tensor(tokens), 0, 300, cache)[-1])
    live = Live(engine)
    live.append(tokens)
    largest = (live.next_logits() - expected).abs().max()
    assert largest <= CANONICAL_BOUND * expected.abs().max()

    other = Live(engine)
    other.append([*tokens[:297], tokens[297] + 1, *tokens[298:]])
    assert (other.next_logits() - expected).abs().max() > 100 * CANONICAL_BOUND * expected.abs().max()


def _all_logits(decoder: Decoder, hidden: Tensor) -> Tensor:
    """Scores after every row at once, as transformers computes them."""
    return decoder.head(decoder._norm(hidden, decoder.final_norm))
