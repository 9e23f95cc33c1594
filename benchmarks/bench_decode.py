"""Decoding at a long context: hot copy against transformers' DynamicCache, without and with recording."""

import time
from collections.abc import Sequence

import torch

from cyberkv.runtime.canonical import single_step
from cyberkv.runtime.live import Live

from .common import Claim, options, report
from .real_model import fresh_engine, load_peer, load_smollm2, prompt


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    context, steps, rounds = (64, 16, 1) if args.quick else (2048, 32, 4)
    loaded = load_smollm2()
    peer = load_peer(loaded)
    tokens = prompt(context + 2 * steps * rounds, loaded.config.vocab_size)
    with fresh_engine(loaded, args.folder) as engine, torch.no_grad():
        live = Live(engine)
        live.append(tokens[:context])
        plain = live.fork(context)
        plain.sequence.reserve(len(tokens) + 256)
        plain.sequence.extend_table(len(tokens))
        live.sequence.reserve(len(tokens) + 256)
        cache = peer(torch.tensor([tokens[:context]]), use_cache=True, logits_to_keep=1).past_key_values
        takes_cache = "cache" in peer.forward.__code__.co_varnames

        def step_plain(i: int) -> None:
            hidden = single_step(engine.decoder, plain.sequence, [tokens[context + i]], context + i)
            engine.decoder.logits(hidden[-1])

        def step_recorded(i: int) -> None:
            live.decode(tokens[context + i])
            live.next_logits()

        def step_peer(i: int) -> None:
            ids = torch.tensor([[tokens[context + i]]])
            peer(ids, use_cache=True, **({"cache": cache} if takes_cache else {"past_key_values": cache}))

        # Rounds alternate, so that all three meet the same disturbances; a round is two whole blocks, so that the
        # cost of filling, swapping and storing them is inside.
        best = {"plain": float("inf"), "recorded": float("inf"), "peer": float("inf")}
        work = {"plain": step_plain, "recorded": step_recorded, "peer": step_peer}
        for first in range(0, steps * rounds, steps):
            for name, step in work.items():
                start = time.perf_counter()
                for i in range(first, first + steps):
                    step(i)
                best[name] = min(best[name], (time.perf_counter() - start) / steps)
    claims = [
        Claim(f"decode at {context}, speed vs DynamicCache", best["peer"] / best["plain"], 1.15),
        Claim(f"decode at {context}, recorded, speed vs DynamicCache", best["peer"] / best["recorded"], 1.0),
    ]
    return report(args, "Decode", claims, {f"{name}, ms/token": value * 1e3 for name, value in best.items()})


if __name__ == "__main__":
    raise SystemExit(main())
