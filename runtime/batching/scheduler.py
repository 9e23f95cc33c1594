"""Continuous batching: many conversations over one pool, one step at a time. No clock, no thread, no chance.

    schedule()      who takes part in the next step, and with which tokens
    run()           one forward for all of them
    postprocess()   rows kept, blocks sealed, tokens chosen and delivered, ended requests let go

Laws. Requests are admitted in the order in which they came. All that are decoded take part in every step; beside them
a step computes a bounded number of tokens of prompts, the oldest first. Where the pool is full, the youngest leaves it,
so the oldest always goes on. Of several that are about to compute the same block one does, the others wait for it.
"""

from bisect import insort
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from torch import Tensor

from ...cybergraph.errors import TierFull
from ..engine import Engine
from ..live import Live
from ..rows import ARCHIVED
from ..steps.checking import Check, check, draft
from ..steps.processor import SharedStep
from ..steps.step import Span
from .admission import Limits, open_job, require_possible, room_for
from .ahead import Ahead
from .job import Job, Leaving, Running, Waiting
from .parking import park
from .request import Finish, Listener, Request


@dataclass(frozen=True, slots=True)
class Planned:
    """The part of one conversation in a step."""

    job: Job
    live: Live
    span: Span


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    planned: Planned
    step: SharedStep | None
    """None where the conversation has recorded the rows itself."""
    hidden: Tensor
    """Outputs of the rows after which something may be chosen. Shape: [rows, hidden_size]."""


class Scheduler:
    """Steps are made by one thread; `submit`, `cancel` and `busy` may be used by others meanwhile."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        engine.domain.require_sound()
        self.engine = engine
        self.limits = limits or Limits()
        self.jobs: list[Job] = []
        """Those that have not ended, in the order in which they came."""
        self._arrived: deque[Job] = deque()
        self._cancelled: deque[int] = deque()
        self._numbers = count()
        self.ahead = Ahead(engine) if engine.host_bytes else None
        self._seats = engine.processor.seats(engine.config, engine.pool, self.limits.running)

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self._arrived or self.jobs)

    @property
    def running(self) -> list[tuple[Job, Running]]:
        """Those with rows in the pool, the oldest first."""
        return [(job, job.place) for job in self.jobs if isinstance(job.place, Running)]

    def submit(self, request: Request, listener: Listener) -> int:
        """Queue a request and give its number. Raises `OutOfRange` or `TierFull` for what could never run."""
        require_possible(self.engine, request)
        if len(self.jobs) + len(self._arrived) >= self.limits.requests:
            raise TierFull(f"{self.limits.requests} requests are under way already", hint="try again later")
        job = Job(next(self._numbers), request, listener)
        self._arrived.append(job)
        return job.number

    def cancel(self, number: int) -> None:
        """End a request when the next step begins. Without effect once it has ended."""
        self._cancelled.append(number)

    def cancel_all(self) -> None:
        """Cancel every request that has not ended."""
        for job in (*self._arrived, *self.jobs):
            self.cancel(job.number)

    def fail_all(self, error: Exception) -> None:
        """End every request after a fault that belongs to none of them. Called by the thread that makes the steps."""
        for job in [*self.jobs, *self._arrived]:
            try:
                self._end(job, Finish.FAILED, error=error)
            except Exception:  # its rows are lost; whoever waits for it is told all the same
                job.place = None
                self._let_go(job)

    def step(self) -> None:
        """Make one step.

        What goes wrong for one request ends that one alone. After an interrupt the next call goes on where this one
        was stopped.
        """
        if planned := self.schedule():
            self.postprocess(self.run(planned))

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

    def _sweep(self) -> None:
        """Take in arrivals and cancellations, and finish what an interrupted step has begun."""
        while self._arrived:
            if self._arrived[0] not in self.jobs:
                insort(self.jobs, self._arrived[0], key=lambda job: job.number)
            self._arrived.popleft()
        while self._cancelled:
            for job in [job for job in self.jobs if job.number == self._cancelled[0]]:
                self._end(job, Finish.CANCELLED)
            self._cancelled.popleft()
        for job in list(self.jobs):
            if job.outcome:
                self._let_go(job)
            elif isinstance(job.place, Leaving):
                self._vacate(job, job.place)

    def _admit(self) -> None:
        """Give pool rows to those that wait, in their order, as far as there are."""
        for job in [job for job in self.jobs if not isinstance(job.place, Running)]:
            running = [place for _, place in self.running]
            if len(running) >= self.limits.running or (running and not room_for(self.engine, job, self.running)):
                return
            try:
                open_job(self.engine, job)
            except TierFull as error:
                if running:
                    return
                self._end(job, Finish.FAILED, error=error)
            except Exception as error:
                self._end(job, Finish.FAILED, error=error)

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

    def _preempt(self, job: Job, place: Running) -> None:
        """Move a conversation out of the pool; it comes back in its turn, or has failed where it cannot be kept."""
        goal = place.goal if place.pending else list(place.live.tokens)
        try:
            parked = park(place.live)
        except Exception as error:
            self._end(job, Finish.FAILED, error=error)
            return
        job.place = leaving = Leaving(place.live, Waiting(parked, goal))
        job.preempted += 1
        self._vacate(job, leaving)

    def _vacate(self, job: Job, leaving: Leaving) -> None:
        self._seats.leave(leaving.live.sequence, None)
        leaving.live.close()
        job.place = leaving.then

    def run(self, planned: list[Planned]) -> list[Done]:
        """Compute what was planned. Where a step fails, each part is tried alone, and who fails alone has failed."""
        if self.engine.domain.scattered:
            return [done for each in planned for done in self._run_single(each)]
        try:
            for each in planned:
                if each.span.seated:
                    self._seats.take(each.live.sequence, each.span.start)
            spans = [each.span for each in planned]
            step = self.engine.processor.step(self.engine.decoder, self._seats, spans, self.engine.domain.floor_rows)
            return [
                Done(each, step, hidden if each.span.seated else hidden[-1:])
                for each, hidden in zip(planned, step.run(), strict=True)
            ]
        except Exception as error:
            if len(planned) == 1:
                self._end(planned[0].job, Finish.FAILED, error=error)
                return []
            return [done for each in planned for done in self.run([each])]

    def _run_single(self, planned: Planned) -> list[Done]:
        """Compute one conversation's part as it does alone, where rows of several may not share a step."""
        live, tokens = planned.live, planned.span.tokens
        try:
            if planned.span.seated:
                live.decode(tokens[0])
            else:
                live.append(tokens)
            return [Done(planned, None, live.last_output()[None])]
        except Exception as error:
            self._end(planned.job, Finish.FAILED, error=error)
            return []

    def postprocess(self, done: list[Done]) -> None:
        """Choose the next tokens, keep the rows of those that are right, seal, deliver."""
        try:
            chosen = check(self.engine, [self._check(each) for each in done])
        except Exception as error:
            if len(done) == 1:
                self._end(done[0].planned.job, Finish.FAILED, error=error)
            else:
                for each in done:
                    self.postprocess([each])
            return
        if any(each.planned.span.seated for each in done):
            self.engine.residency.step()
        for each, tokens in zip(done, chosen, strict=True):
            job, live = each.planned.job, each.planned.live
            try:
                tokens, ended = job.cut(tokens)
                self._record(each, max(1, len(tokens)))
                self._choose(job, live, tokens, ended)
                if isinstance(job.place, Running) and not job.place.pending:
                    self._ends_here(job, live)
            except Exception as error:
                self._end(job, Finish.FAILED, error=error)

    def _check(self, done: Done) -> Check:
        """Say what is to be chosen after a part: nothing inside a prompt, or where the next token is known."""
        job, span, rows = done.planned.job, done.planned.span, done.hidden.shape[0]
        end = span.start + len(span.tokens)
        inside = isinstance(job.place, Running) and end < len(job.place.goal)
        wanted = job.left > 0 and not inside and not job.comes_next(end) and end < self.engine.config.max_positions
        return Check(job.request.sampling, end - rows, span.tokens[-rows:], done.hidden, wanted)

    def _record(self, done: Done, rows: int) -> None:
        """Keep the rows: all of a prompt, the first `rows` of what was decoded. What is full is stored, or not kept."""
        live, span = done.planned.live, done.planned.span
        size = self.engine.geometry.block_size
        if done.step is not None:
            if span.seated:
                done.step.settle(span, range(rows))
                live.record(span.tokens[:rows], done.hidden[rows - 1])
            else:
                live.record(span.tokens, done.hidden[-1])
            if span.seated:
                live.counts.tokens_drafted += len(span.tokens) - 1
                live.counts.tokens_accepted += rows - 1
        live.sequence.truncate_table(-(-len(live.tokens) // size))

    def _finish(self, job: Job, live: Live, finish: Finish) -> None:
        """End a request that came to its end, with what its `keep` gives."""
        self._seats.leave(live.sequence, len(live.tokens))
        self._end(job, finish, kept=job.request.keep(live) if job.request.keep and not job.outcome else None)

    def _end(self, job: Job, finish: Finish, *, kept: object = None, error: Exception | None = None) -> None:
        job.end(finish, kept=kept, error=error)
        self._let_go(job)

    def _let_go(self, job: Job) -> None:
        """Give back what an ended request held and tell its listener. May be called again."""
        if isinstance(job.place, Running | Leaving):
            self._seats.leave(job.place.live.sequence, None)
            job.place.live.close()
        job.place = None
        if job in self.jobs:
            self.jobs.remove(job)
        if job.outcome and not job.told:
            job.told = True
            with suppress(Exception):  # it has ended, and nobody listens
                job.listener(job.outcome)

    def check_integrity(self) -> list[str]:
        """List what does not add up between steps, where nobody else uses the pool."""
        pool = self.engine.pool
        leases = Counter(row for _, place in self.running for row in place.live.sequence.table if row != ARCHIVED)
        findings = [
            f"row {row} has {pool.users(row)} users, and {leases[row]} conversations hold it"
            for row in range(pool.capacity_blocks)
            if pool.users(row) != leases[row]
        ]
        if len({job.number for job in self.jobs}) != len(self.jobs):
            findings.append("a request stands twice")
        return findings + self.engine.residency.check_integrity()
