"""Conversations alone, computed in the slowest and plainest way: what batches and drafts are compared with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cyberkv.cybergraph.cid import Cid
from cyberkv.runtime.batching.request import Outcome, Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live

TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(1200)]


@dataclass(frozen=True, slots=True)
class State:
    """Everything that has to be equal."""

    tokens: list[int]
    blocks: list[Cid]
    prefilled: int
    rows: Tensor
    logits: Tensor

    @classmethod
    def of(cls, live: Live) -> "State":
        rows = live.engine.pool.rows[torch.tensor([row for row in live.sequence.table if row < 1 << 62])]
        raw = rows.permute(0, 3, 1, 2, 4, 5).flatten(0, 1)
        dropped = (len(live.sequence.table) - rows.shape[0]) * live.engine.geometry.block_size
        kept = raw[: len(live.tokens) - dropped].clone()
        return cls(list(live.tokens), list(live.blocks), live.prefilled, kept, live.next_logits().clone())

    def same(self, other: "State") -> bool:
        return (
            (self.tokens, self.blocks, self.prefilled) == (other.tokens, other.blocks, other.prefilled)
            and torch.equal(self.rows, other.rows)
            and torch.equal(self.logits, other.logits)
        )


def alone(engine: Engine, request: Request) -> tuple[list[int], State]:
    """Choose each token after a prefill of all before it."""
    live, chosen = Live(engine), list[int]()
    live.append(request.tokens)
    while len(chosen) < request.max_tokens and len(live.tokens) < engine.config.max_positions:
        token = request.sampling.choose(live.next_logits(), len(live.tokens))
        if token in request.stop:
            break
        live.append([token])
        chosen.append(token)
    state = State.of(live)
    live.close()
    return chosen, state


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcomes: list[Outcome] = []

    def __call__(self, event: int | Outcome) -> None:
        assert not self.outcomes
        if isinstance(event, Outcome):
            self.outcomes.append(event)
        else:
            self.tokens.append(event)

    @property
    def outcome(self) -> Outcome:
        [outcome] = self.outcomes
        return outcome


def drain(scheduler: Scheduler, *, most: int = 2000) -> int:
    steps = 0
    while scheduler.busy:
        scheduler.step()
        assert scheduler.check_integrity() == []
        steps += 1
        assert steps < most
    return steps
