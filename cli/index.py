"""`index rebuild`: the index from the blocks alone."""

import click

from .context import Session, pass_session
from .output import answer, facts


@click.group()
def index() -> None:
    """Look after the index."""


@index.command()
@pass_session
def rebuild(session: Session) -> None:
    """Make the index anew from the store.

    Blocks are found again by their inputs and order. Names, their logs and what was published are kept. If the
    index was lost as a whole, names come back from the titles of conversations; those of forgotten ones, too.
    """
    session.open_to_write(makes_index=True)
    rebuilt = session.index.rebuild(session.store)
    data = {
        "blocks": rebuilt.blocks,
        "detached": rebuilt.detached,
        "unreadable": rebuilt.unreadable,
        "conversations": rebuilt.conversations,
        "names": rebuilt.names,
    }
    counts = [(name, f"{len(value):,}" if isinstance(value, list) else f"{value:,}") for name, value in data.items()]
    answer(session, data, lambda: facts(counts))
