"""Continuous batching: many conversations over one pool, one step at a time. No clock, no thread, no chance.

schedule()      who takes part in the next step, and with which tokens (`planning`, over a `roster`)
run()           one forward for all of them
postprocess()   rows kept, blocks sealed, tokens chosen and delivered, ended requests let go
"""

from dataclasses import dataclass

from torch import Tensor

from ..steps.checking import Check, check
from ..steps.processor import SharedStep
from .job import Running
from .planning import Planned, Planning
from .request import Finish


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a part."""

    planned: Planned
    step: SharedStep | None
    """None where the conversation has recorded the rows itself."""
    hidden: Tensor
    """Outputs of the rows after which something may be chosen. Shape: [rows, hidden_size]."""


class Scheduler(Planning):
    """Steps are made by one thread; `submit`, `cancel` and `busy` may be used by others meanwhile."""

    def step(self) -> None:
        """Make one step.

        What goes wrong for one request ends that one alone. After an interrupt the next call goes on where this one
        was stopped.
        """
        if planned := self.schedule():
            self.postprocess(self.run(planned))

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
