"""Progress bars: on stderr, on a terminal, and gone when the work is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from .context import Session
from .output import console, remark

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
TOLD_AFTER_S = 1.0
"""Where no bar can be drawn, work that takes no longer than this is not worth a line."""


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
    """Show that work of unknown length goes on inside the `with`: where there is no terminal, once if it takes long."""
    if session.shows_progress:
        with console(stderr=True).status(label):
            yield
        return
    if not session.remarks_waits:
        yield
        return
    told = Timer(TOLD_AFTER_S, remark, (session, label))
    told.daemon = True
    told.start()
    try:
        yield
    finally:
        told.cancel()
        told.join()
