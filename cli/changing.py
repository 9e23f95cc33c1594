"""Commands that make one change: interrupted, they say whether it was made."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from .context import Session
from .interrupt import INTERRUPTED, Stop, holdable
from .output import remark


@contextmanager
def changing(session: Session) -> Iterator[Stop]:
    """Make one change and answer, within the `with`: `hold` is called just before what cannot be taken back.

    A Ctrl-C before that says that nothing was changed. After it, the command does all it has to, answers, says that it
    did, and leaves with the exit code of an interrupt.
    """
    try:
        with holdable() as stop:
            yield stop
    except KeyboardInterrupt:
        if not stop.held:
            raise click.Abort("nothing was changed") from None
        remark(session, "interrupted too late: the change was made, as said above")
        raise click.exceptions.Exit(INTERRUPTED) from None
