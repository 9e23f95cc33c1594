"""The requests of a scheduler: who has come, who is in the pool, who has to leave it, and who has ended.

Requests are admitted in the order in which they came.
"""

from bisect import insort
from collections import Counter, deque
from contextlib import suppress
from itertools import count

from ...cybergraph.errors import TierFull
from ..engine import Engine
from ..live import Live
from ..rows import ARCHIVED
from .admission import Limits, open_job, require_possible, room_for
from .job import Job, Leaving, Running, Waiting
from .parking import park
from .request import Finish, Listener, Request


class Roster:
    """`submit`, `cancel` and `busy` may be used by others than the thread that makes the steps."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        engine.domain.require_sound()
        self.engine = engine
        self.limits = limits or Limits()
        self.jobs: list[Job] = []
        """Those that have not ended, in the order in which they came."""
        self._arrived: deque[Job] = deque()
        self._cancelled: deque[int] = deque()
        self._numbers = count()
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
