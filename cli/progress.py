"""Progress bars: on stderr, on a terminal, and gone when the work is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .context import Session
from .output import console

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@contextmanager
def bar(session: Session, label: str) -> Iterator[Progress]:
    """Give a callable that draws how far the work inside the `with` is."""
    if not session.shows_progress:
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def busy(session: Session, label: str) -> Iterator[None]:
    """Show that work of unknown length goes on inside the `with`."""
    if not session.shows_progress:
        yield
        return
    with console(stderr=True).status(label):
        yield
