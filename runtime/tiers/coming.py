"""Blocks of a lease that are still on their way into its rows, as a sequence waits for them: layer by layer.

They come from the store while the first layers are computed. Until all of one was verified, nobody else finds it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt, NotFound
from ...cybergraph.nodes import Block
from ..pool import Filling
from .lease import Miss

if TYPE_CHECKING:
    from .residency import Residency


class Run(NamedTuple):
    """Blocks that were bound to their places and have rows."""

    cids: Sequence[Cid]
    """Of all that are claimed: there may be more than nodes."""
    nodes: list[Block]
    rows: list[int]
    position: int
    """Of the first token."""


class BlocksComing:
    """See `Coming`. It has users of its own on the rows, and the claim on the blocks, until it is over.

    It is over after `finish`, after `cut` and after `stop`.
    """

    def __init__(self, residency: "Residency", filling: Filling, run: Run) -> None:
        """Take over what fills the rows of `run`, and its claim."""
        self._residency, self._filling, self._run = residency, filling, run
        self._size = residency.pool.geometry.block_size
        self._blocks = len(run.nodes)
        self._taken: set[int] = set()
        self._is_over = False
        self._rows = [residency.pool.retain(row) for row in run.rows]

    @property
    def first_block(self) -> int:
        """Where in the page table they begin."""
        return self._run.position // self._size

    def take(self, layer: int) -> tuple[int, int] | None:
        """See `Coming`. The host waits until the rows were verified, the kernels until they are there."""
        if layer in self._taken:
            return None
        if not self._is_over:
            self._filling.take(layer)
        self._taken.add(layer)
        first = self._run.position
        return (first, first + self._blocks * self._size) if self._blocks else None

    def finish(self) -> None:
        """See `Coming`. From then on others find the blocks."""
        if not self._is_over:
            self._filling.finish()
            if self._filling.error is not None:
                raise self._filling.error
            self._land()

    def cut(self) -> Miss | None:
        """See `Coming`. A leaf that is absent or damaged is one; what is damaged leaves the store."""
        if self._is_over or not isinstance(self._filling.error, NotFound | Corrupt):
            return None
        self._blocks = self._filling.finish()
        error = self._filling.error
        self._land()
        self._taken.clear()
        return self._residency.lower.missed(
            self._run.cids[self._blocks], self._run.position + self._blocks * self._size, error
        )

    def stop(self) -> bool:
        """See `Coming`."""
        if self._is_over:
            return True
        try:
            self._filling.close()
            come = self._filling.error is None and self._filling.finish() == self._blocks
            if come:
                self._residency.name(self._run, self._blocks)
            return come
        finally:
            self._give_back()

    def _land(self) -> None:
        try:
            self._residency.name(self._run, self._blocks)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._is_over = True
        with ExitStack() as stack:  # all of it, whatever goes wrong with one
            stack.callback(self._residency.leave, self._run.cids)
            stack.callback(self._filling.close)
            rows, self._rows = self._rows, []
            for row in rows:
                stack.callback(self._residency.pool.release, row)
