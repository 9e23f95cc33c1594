"""`forget`: give up names, so that `gc` may delete what only they held."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ..cybergraph.errors import TierFull
from .context import Session, pass_session
from .identities import leave_readers
from .lock import drop_notes
from .options import REF
from .output import answer, remark, say


@contextmanager
def leaving_nothing(session: Session) -> Iterator[None]:
    """Write over what was deleted in the index inside the `with`. Where there is no room for that, `gc` does."""
    from ..cybergraph.keeping.traces import Traces

    traces = Traces(session.home)
    files = (session.store, session.index) if traces.remain else (session.index,)
    traces.expect()
    yield
    try:
        traces.overwrite(*files)
    except TierFull as error:
        remark(session, f"its files keep traces of the log until `cyberkv gc` has room to write over them: {error}")


@click.command()
@click.argument("names", metavar="NAME...", type=REF, nargs=-1, required=True)
@pass_session
def forget(session: Session, names: tuple[str, ...]) -> None:
    """Give up the names of conversations.

    A name goes with its log, which is written over in the index; nothing else is deleted yet. `gc` then deletes what no
    other name, publication or pin needs. What was published stays public. That the name was given up is remembered.
    """
    session.open_to_write()
    forgotten = [session.index.head(name) for name in dict.fromkeys(names)]  # all are known before one goes
    with leaving_nothing(session):
        for head in forgotten:
            leave_readers(session, head.name, head.root)  # first: another conversation may get the name
            session.index.drop(head.name)
        drop_notes(session)
    data = {"forgotten": [{"name": head.name, "root": head.root} for head in forgotten]}

    def show() -> None:
        for head in forgotten:
            say(f"{head.name}  {head.root}")

    answer(session, data, show)
    remark(session, "its objects are still here: `cyberkv gc` deletes what nothing else needs")
