"""What goes into the next step: rows of prompts beside those that are decoded.

All that are decoded take part in every step; beside them a step computes a bounded number of tokens of prompts, the
oldest first. Where the pool is full, the youngest leaves it, so the oldest always goes on. Of several that are about to
compute the same block one does, the others wait for it.
"""

from contextlib import suppress
from dataclasses import dataclass

from ...cybergraph.errors import TierFull
from ..engine import Engine
from ..live import Live
from ..steps.checking import draft
from ..steps.step import Span
from .admission import Limits
from .ahead import Ahead
from .job import Job, Running
from .request import Finish
from .roster import Roster


@dataclass(frozen=True, slots=True)
class Planned:
    """The part of one conversation in a step."""

    job: Job
    live: Live
    span: Span


class Planning(Roster):
    """See the module."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        super().__init__(engine, limits)
        self.ahead = Ahead(engine) if engine.host_bytes else None

    def schedule(self) -> list[Planned]:
        """Take in what came and went meanwhile, admit, and plan: prompts first, then what is decoded."""
        self._sweep()
        self._admit()
        planned: list[Planned] = []
        for job, place in self.running:
            if job.place is place and not place.pending:
                self._plan_decode(job, place.live, planned)
        self._plan_prefill(planned)
        if self.ahead:
            self.ahead.look(self.jobs)
        return sorted(planned, key=lambda each: each.span.seated)

    def _plan_decode(self, job: Job, live: Live, planned: list[Planned]) -> None:
        """Plan the next token of a conversation, and guesses after it."""
        try:
            length = len(live.tokens)
            if not self._ends_here(job, live) and not job.comes_next(length):
                token = job.request.sampling.choose(live.next_logits(), length)
                self._choose(job, live, *job.cut([token]))
            if not isinstance(job.place, Running):
                return
            drafter = None if self.engine.domain.scattered else job.request.drafter
            tokens = draft(live, job.said.tokens[-1], drafter, job.left - 1)
        except Exception as error:
            self._end(job, Finish.FAILED, error=error)
            return
        if self._make_room(job, live, length + len(tokens), planned):
            planned.append(Planned(job, live, Span(live.sequence, length, tokens, seated=True)))

    def _choose(self, job: Job, live: Live, tokens: list[int], ended: bool) -> None:  # noqa: FBT001
        """Take and deliver what was chosen."""
        finish = job.say(tokens, len(live.tokens), ended=ended) if tokens else None
        job.deliver()
        if finish:
            self._finish(job, live, finish)

    def _ends_here(self, job: Job, live: Live) -> bool:
        """End a conversation that needs nothing more."""
        length = len(live.tokens)
        if (job.left <= 0 and not job.comes_next(length)) or length >= self.engine.config.max_positions:
            self._finish(job, live, Finish.STOP if job.said.ended else Finish.LENGTH)
            return True
        return False

    def _plan_prefill(self, planned: list[Planned]) -> None:
        """Plan chunks of prompts, the oldest first, within the step's budget."""
        size = self.engine.geometry.block_size
        budget = max(size, self.limits.prefill_tokens // size * size)
        claimed: set[bytes] = set()
        for job, place in self.running:
            if job.place is not place or not place.pending:
                continue
            if not claimed.isdisjoint(place.missing):
                place.looked_up = False  # somebody older computes some of it: it will be there
                continue
            try:
                self._look_up(place)
            except Exception as error:
                self._end(job, Finish.FAILED, error=error)
                continue
            claimed.update(place.missing)
            pending, start = place.pending, len(place.live.tokens)
            take = len(pending) if len(pending) <= budget else budget
            if take and self._make_room(job, place.live, start + take, planned):
                span = Span(place.live.sequence, start, tuple(pending[:take]), seated=False)
                planned.append(Planned(job, place.live, span))
                budget -= -(-take // size) * size

    def _look_up(self, place: Running) -> None:
        """Take what exists of the next tokens. With too little room for all of it that is nothing: it is computed."""
        if not place.looked_up and not place.live.approx and place.missing:
            with suppress(TierFull):
                place.live.load_known(place.pending)
        place.looked_up = True

    def _make_room(self, job: Job, live: Live, length: int, planned: list[Planned]) -> bool:
        """Have the page table and the rotated copy cover `length`; the youngest leave for it.

        False where that is this one.
        """
        while True:
            try:
                live.sequence.extend_table(length)
                live.sequence.reserve(length + self.engine.domain.floor_rows)  # with padding
            except TierFull as error:
                running = self.running
                if len(running) == 1:
                    self._end(job, Finish.FAILED, error=error)
                    return False
                victim, place = running[-1]
                self._preempt(victim, place)
                planned[:] = [each for each in planned if each.job is not victim]
                if victim is job:
                    return False
            except Exception as error:
                self._end(job, Finish.FAILED, error=error)
                return False
            else:
                return True
