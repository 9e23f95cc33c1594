"""Progress of blocks that move or are checked, on a terminal: one bar for each phase, gone at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..cybergraph.transfer.progress import SILENT, Phase, Progress
from .context import Session
from .output import console

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


@contextmanager
def block_bars(session: Session) -> Iterator[Progress]:
    """Give a progress that draws how many bytes of leaves the work inside the `with` is through with."""
    if not session.shows_progress:
        yield SILENT
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Bars(*columns, console=console(stderr=True), transient=True) as bars:
        yield _BlockBars(bars)


class _BlockBars:
    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._task = bars.add_task("", visible=False)

    def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:  # noqa: ARG002
        self._task = self._bars.add_task(name, total=bytes_total)

    def advance(self, blocks: int, size_bytes: int) -> None:  # noqa: ARG002
        self._bars.advance(self._task, size_bytes)
