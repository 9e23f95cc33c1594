"""Edits: an exact eviction against prefilling what comes after it, and what rollback and branch cost.

Each eviction is measured beside a prefill of as many new tokens as stood from its start on, over the same rows before.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from cyberkv.runtime.edits.evict import drop_branch, evict, open_branch
from cyberkv.runtime.edits.receipt import Cut
from cyberkv.runtime.live import Live

from .common import Claim, options, report
from .real_model import fresh_engine, load_smollm2, prompt

SPAN_TOKENS = 64


def took_s(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    length, rounds = (384, 1) if args.quick else (2048, 3)
    places = [length // 4, length // 2, length * 3 // 4]
    loaded = load_smollm2()
    best: dict[str, float] = {}

    def note(name: str, seconds: float) -> None:
        best[name] = min(best.get(name, seconds), seconds)

    with fresh_engine(loaded, args.folder) as engine:
        for salt in range(rounds):  # other tokens in each: what was computed before would be loaded
            live = Live(engine)
            live.append(prompt(length, loaded.config.vocab_size, salt))
            for place in places:
                peer, copy = live.fork(place), live.fork(length)
                fresh = prompt(length - place, loaded.config.vocab_size, 1000 * salt + place)
                note(f"prefill {length - place}", took_s(partial(peer.append, fresh)))
                cut = Cut(place, place + SPAN_TOKENS)
                note(f"exact at {place}", took_s(partial(evict, copy, [cut])))
                fast = live.fork(length)
                note(f"fast at {place}", took_s(partial(evict, fast, [cut], "fast")))
                for each in (peer, copy, fast):
                    each.close()
            for end in range(length - 8, length // 2, -(length // 32 + 1)):  # inside blocks: the rest of one is copied
                note("rollback", took_s(partial(live.rollback, end)))
            for end in range(length // 2 - 8, length // 4, -(length // 32 + 1)):
                cut = Cut(end, len(live.tokens))
                note("evict, mode rollback", took_s(partial(evict, live, [cut], "rollback")))
            at = len(live.tokens)
            branch = open_branch(live)
            branch.append(prompt(SPAN_TOKENS, loaded.config.vocab_size, 7000 + salt))
            note("drop a branch", took_s(partial(drop_branch, live, branch, at)))
            live.close()
    claims = [
        Claim(f"evict {SPAN_TOKENS} of {length} at {place}, time vs prefilling the {length - place} from there on",
              best[f"exact at {place}"] / best[f"prefill {length - place}"], 1.15, at_most=True)
        for place in places
    ]  # fmt: skip
    claims += [
        Claim(name, best[name] * 1e3, 10, unit="ms", at_most=True)
        for name in ("rollback", "evict, mode rollback", "drop a branch")
    ]
    return report(args, "Edits", claims, {f"{name}, s": value for name, value in best.items()})


if __name__ == "__main__":
    raise SystemExit(main())
