"""Speculative decoding of repetitive text by looking up the prompt, against decoding one row at a time."""

import time
from collections.abc import Callable, Sequence

import torch

from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.steps.drafting import PromptLookup

from .common import Claim, options, report
from .real_model import fresh_engine, load_smollm2, prompt


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    repeats, answer, rounds = (4, 32, 1) if args.quick else (8, 128, 3)
    loaded = load_smollm2()
    best = {"repetitive, plain": float("inf"), "repetitive, drafted": float("inf"), "aperiodic, drafted": float("inf")}
    kept = 0.0
    with fresh_engine(loaded, args.folder) as engine, torch.no_grad():
        for i in range(rounds):
            for name, fastest_s in best.items():
                phrase = prompt(24, loaded.config.vocab_size, salt=10 * i + len(name))
                text = phrase * repeats if name.startswith("repetitive") else prompt(24 * repeats, 40_000, salt=i)
                guessed = _Counting(PromptLookup()) if "drafted" in name else None
                best[name] = min(fastest_s, _decode_s(engine, text, answer, guessed))
                if guessed and name.startswith("repetitive"):
                    kept = answer / max(1, guessed.calls)
    claims = [Claim("repetitive text, speed of drafts", best["repetitive, plain"] / best["repetitive, drafted"], 1.3)]
    figures = {f"{name}, tokens/s": answer / took_s for name, took_s in best.items()}
    return report(args, "Speculation", claims, {**figures, "tokens a step, repetitive": kept})


class _Counting:
    def __init__(self, inner: Callable[[Sequence[int]], list[int]]) -> None:
        self.inner, self.calls = inner, 0

    def __call__(self, tokens: Sequence[int], /) -> list[int]:
        self.calls += 1
        return self.inner(tokens)


def _decode_s(engine: Engine, text: list[int], answer: int, drafter: _Counting | None) -> float:
    live = Live(engine)
    live.append(text)
    live.next_logits()
    started_s = time.perf_counter()
    count = sum(1 for _ in live.generate(answer, Sampling(), drafter=drafter))
    took_s = time.perf_counter() - started_s
    assert count == answer
    live.close()
    return took_s


if __name__ == "__main__":
    raise SystemExit(main())
