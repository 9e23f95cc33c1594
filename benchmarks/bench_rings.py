"""Decoding behind a window: rings against transformers' sliding cache, and what they hold against a full copy.

The weights are SmolLM2's under a configuration with windows: another model, which answers otherwise and costs the same.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from cyberkv.runtime.canonical import single_step
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.config import LayerKind
from cyberkv.runtime.rings.window import live_bytes

from .common import Claim, options, report
from .real_model import fresh_engine, load_peer, load_smollm2, prompt


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    context, window, steps, rounds = (192, 64, 8, 1) if args.quick else (4096, 1024, 32, 4)
    loaded = load_smollm2()
    kinds = (LayerKind(window=window),) * loaded.config.num_layers
    loaded = replace(loaded, config=replace(loaded.config, layers=kinds))
    peer = _sliding_peer(load_peer(loaded), window)
    tokens = prompt(context + steps * rounds, loaded.config.vocab_size)
    with fresh_engine(loaded, args.folder) as engine, torch.no_grad():
        live = Live(engine)
        live.append(tokens[:context])
        live.sequence.extend_table(len(tokens))
        cache = peer(torch.tensor([tokens[:context]]), use_cache=True, logits_to_keep=1).past_key_values
        takes_cache = "cache" in peer.forward.__code__.co_varnames

        def step_ring(i: int) -> None:
            hidden = single_step(engine.decoder, live.sequence, [tokens[context + i]], context + i)
            engine.decoder.logits(hidden[-1])

        def step_peer(i: int) -> None:
            ids = torch.tensor([[tokens[context + i]]])
            peer(ids, use_cache=True, **({"cache": cache} if takes_cache else {"past_key_values": cache}))

        best = {"ring": float("inf"), "peer": float("inf")}
        for first in range(0, steps * rounds, steps):
            for name, step in (("ring", step_ring), ("peer", step_peer)):
                start = time.perf_counter()
                for i in range(first, first + steps):
                    step(i)
                best[name] = min(best[name], (time.perf_counter() - start) / steps)
        full = live_bytes((LayerKind(),) * len(kinds), context, engine.geometry.row_bytes)
        held = live.sequence.live_bytes
    claims = [
        Claim(f"decode at {context} behind a window of {window}, speed vs sliding DynamicCache",
              best["peer"] / best["ring"], 1.0),
        Claim(f"live rows at {context} behind a window of {window}, full copy vs rings", full / held, 3.0),
    ]  # fmt: skip
    return report(args, "Rings", claims, {f"{name}, ms/token": value * 1e3 for name, value in best.items()})


def _sliding_peer(full: torch.nn.Module, window: int) -> torch.nn.Module:
    """The same weights in transformers as a Mistral model, which is a Llama model with a window."""
    from transformers import MistralConfig, MistralForCausalLM

    shape = {
        name: getattr(full.config, name)
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "rope_parameters",
                     "tie_word_embeddings")
    }  # fmt: skip
    peer = MistralForCausalLM(MistralConfig(**shape, sliding_window=window))
    peer.load_state_dict(full.state_dict())
    return peer.eval()


if __name__ == "__main__":
    raise SystemExit(main())
