"""Many conversations over one pool: together against one after another, the scheduler's part, a shared prompt."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch

from cyberkv.runtime.batching import scheduler as scheduler_module
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.request import Outcome, Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.steps.step import Step

from .common import Claim, options, report
from .real_model import fresh_engine, load_smollm2, prompt

ALONE = 4
TOGETHER = (8, 16)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    context, answer, rounds, shared = (32, 8, 1, 128) if args.quick else (256, 48, 3, 1500)
    loaded = load_smollm2()
    figures: dict[str, float] = {}
    alone_s, best_s = float("inf"), dict.fromkeys(TOGETHER, float("inf"))
    overheads: list[float] = []
    with fresh_engine(loaded, args.folder) as engine, torch.no_grad():
        for i in range(rounds):
            # Other texts in every round: what was computed once is not computed again.
            texts = (prompt(context, loaded.config.vocab_size, salt=100 * i + n) for n in range(100))
            alone_s = min(alone_s, _alone_s(engine, list(islice(texts, ALONE)), answer) / ALONE)
            for count, fastest_s in best_s.items():
                took_s, overhead = _together_s(engine, list(islice(texts, count)), answer)
                best_s[count] = min(fastest_s, took_s / count)
                overheads.append(overhead)
        first_s, second_s = _tenants_s(engine, prompt(shared, loaded.config.vocab_size, salt=9999))
    figures["decode, one after another, tokens/s"] = answer / alone_s
    figures |= {f"decode, {count} together, tokens/s": answer / took_s for count, took_s in best_s.items()}
    figures |= {"first token of the first tenant, s": first_s, "first token of the second, s": second_s}
    claims = [
        *(Claim(f"{count} conversations decoded together, speed", alone_s / best_s[count], 2.5) for count in TOGETHER),
        Claim("scheduler's own part of a step", 100 * min(overheads), 3.0, unit="%", at_most=True),
        Claim(f"second tenant on a prompt of {shared}, first token faster", first_s / second_s, 10.0),
    ]
    return report(args, "Batching", claims, figures)


def _alone_s(engine: Engine, texts: list[list[int]], answer: int) -> float:
    """Decode one conversation after the other; prompts are not counted."""
    took_s = 0.0
    for text in texts:
        live = Live(engine)
        live.append(text)
        live.next_logits()
        started_s = time.perf_counter()
        for _ in live.generate(answer, Sampling()):
            pass
        took_s += time.perf_counter() - started_s
        live.close()
    return took_s


def _together_s(engine: Engine, texts: list[list[int]], answer: int) -> tuple[float, float]:
    """Decode all at once; prompts are not counted. Gives seconds, and the part outside forward, scores and seals."""
    scheduler = Scheduler(engine, Limits(running=len(texts), prefill_tokens=1024))
    for text in texts:
        scheduler.submit(Request(tuple(text), max_tokens=answer), lambda _: None)
    while any(place.pending for _, place in scheduler.running) or not scheduler.running:
        scheduler.step()
    spent: list[float] = []
    with ExitStack() as stack:
        for owner, name in ((scheduler, "run"), (scheduler_module, "check"), (Step, "settle"), (Live, "seal")):
            timed = _timed(getattr(owner, name), spent)
            stack.enter_context(patch.object(owner, name, timed))
        started_s = time.perf_counter()
        while scheduler.busy:
            scheduler.step()
        took_s = time.perf_counter() - started_s
    return took_s, 1 - sum(spent) / took_s


def _timed(work: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        started_s = time.perf_counter()
        result = work(*args)
        spent.append(time.perf_counter() - started_s)
        return result

    return timed


def _tenants_s(engine: Engine, text: list[int]) -> tuple[float, float]:
    """Seconds to the first token of two requests with one prompt; the first goes on meanwhile."""
    scheduler = Scheduler(engine, Limits(prefill_tokens=1024))
    took: list[float] = []
    for _ in range(2):
        told: list[int | Outcome] = []
        scheduler.submit(Request(tuple(text), max_tokens=64), told.append)
        started_s = time.perf_counter()
        while not told:
            scheduler.step()
        took.append(time.perf_counter() - started_s)
    scheduler.cancel_all()
    scheduler.step()
    return took[0], took[1]


if __name__ == "__main__":
    raise SystemExit(main())
