"""Ahead of requests that wait: their blocks come to host memory while others run.

Off unless the engine has host memory for blocks (`Engine.host_bytes`): then there is no thread.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ...cybergraph.cid import Cid
from ...cybergraph.errors import CyberKVError
from ..engine import Engine
from ..live import Live
from ..prefetch.prefetcher import Prefetcher, Tally, Walk
from .job import Job, Running, Waiting

MOST_HEADS: Final = 4
"""Requests that are looked ahead of. They are admitted in the order in which they came: those behind have time."""


class Ahead:
    """A head for each of the oldest requests that wait, new ones and those that were put out of the pool."""

    def __init__(self, engine: Engine) -> None:
        """Use half of the engine's host memory; the other half is for what leaves the pool."""
        self._engine, self._prefetcher = engine, Prefetcher(engine.residency)
        self._walks: dict[int, Walk] = {}

    @property
    def tally(self) -> Tally:
        """What came of what was brought. Safe for use by several threads."""
        return self._prefetcher.tally

    @property
    def budget_bytes(self) -> int:
        """What waits to be read never takes more host memory."""
        return self._prefetcher.budget_bytes

    def look(self, jobs: Sequence[Job]) -> None:
        """Have a head for whoever waits now, and none for whoever has begun or ended. Called after each planning."""
        kept = {job.number for job in jobs if job.number in self._walks and self._is_loading(job)}
        waiting = [job for job in jobs if not isinstance(job.place, Running)][:MOST_HEADS]
        kept.update(job.number for job in waiting)
        for number in self._walks.keys() - kept:
            self._walks.pop(number).close()
        for job in waiting:
            if job.number not in self._walks:
                blocks = self._blocks(job)
                unread = self._engine.new_sequence().unread_blocks(len(blocks))
                self._walks[job.number] = self._prefetcher.walk(blocks, at=unread)

    def _is_loading(self, job: Job) -> bool:
        """Note how far a request is that has begun, and say whether it is still to take blocks."""
        if isinstance(place := job.place, Running):
            self._walks[job.number].advance(len(place.live.blocks))
            return not place.looked_up
        return False

    def _blocks(self, job: Job) -> Sequence[Cid]:
        """List the blocks that a request will ask for when its turn comes. What cannot be read, it says itself then."""
        if isinstance(job.place, Waiting):
            return job.place.parked.blocks
        engine, known = self._engine, list[Cid]()
        with suppress(CyberKVError):
            if job.request.blocks is not None:
                return job.request.blocks(engine)
            known = engine.index.lookup_chain(Live(engine).prefixes_of(job.request.tokens), engine.domain.name)
        return known

    def close(self) -> None:
        """End the thread. What was brought stays in host memory."""
        self._prefetcher.close()
