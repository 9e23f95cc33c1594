"""Progress of blocks that move or are checked: on a terminal a bar for each phase, with `--json` lines on stderr."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ..cybergraph.transfer.progress import SILENT, Phase, Progress
from .context import Session
from .output import console

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

LINE_S: Final = 1.0
"""Seconds between two lines; work that takes no longer says nothing."""


@contextmanager
def block_bars(session: Session) -> Iterator[Progress]:
    """Give a progress that shows how many blocks and bytes of leaves the work inside the `with` is through with."""
    if session.tells_progress:
        yield _Lines(session.clock_s)
        return
    if not session.shows_progress:
        yield SILENT
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[blocks]:,} of {task.fields[blocks_total]:,} objects"),
    )  # fmt: skip
    with Bars(*columns, console=console(stderr=True), transient=True) as bars:
        yield _BlockBars(bars)


class _BlockBars:
    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._task = bars.add_task("", visible=False, blocks=0, blocks_total=0)
        self._blocks = 0

    def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:
        self._task = self._bars.add_task(name, total=bytes_total, blocks=0, blocks_total=blocks_total)
        self._blocks = 0

    def advance(self, blocks: int, size_bytes: int) -> None:
        self._blocks += blocks
        self._bars.update(self._task, advance=size_bytes, blocks=self._blocks)


class _Lines:
    """One JSON object a line on stderr: phase, blocks, bytes, both totals, rate in bytes a second, seconds left."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._phase: Phase | None = None
        self._blocks = self._bytes = self._blocks_total = self._bytes_total = 0
        self._begun_s = self._told_s = clock_s()

    def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:
        self._phase = name
        self._blocks = self._bytes = 0
        self._blocks_total, self._bytes_total = blocks_total, bytes_total
        self._begun_s = self._told_s = self._clock_s()

    def advance(self, blocks: int, size_bytes: int) -> None:
        self._blocks += blocks
        self._bytes += size_bytes
        now_s = self._clock_s()
        if now_s - self._told_s < LINE_S:
            return
        self._told_s = now_s
        bytes_s = self._bytes / (now_s - self._begun_s)
        data = {
            "phase": self._phase,
            "blocks": self._blocks,
            "blocks_total": self._blocks_total,
            "bytes": self._bytes,
            "bytes_total": self._bytes_total,
            "bytes_s": round(bytes_s),
            "left_s": round((self._bytes_total - self._bytes) / bytes_s, 1) if bytes_s else None,
        }
        click.echo(json.dumps({"progress": data}), err=True)
