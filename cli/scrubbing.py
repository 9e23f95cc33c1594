"""Look through the store in the background of commands that run long."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..cybergraph.keeping.clock import Clock
from ..cybergraph.keeping.quarantine import quarantine
from ..cybergraph.keeping.scrub import Scrub
from ..cybergraph.store.base import Finding
from .context import Session
from .output import remark


@contextmanager
def scrubbing(session: Session) -> Iterator[Scrub]:
    """Scrub for as long as the `with` lasts; what is damaged is said on stderr and, where possible, taken out.

    Gives the scrub, whose `done` says how far it is.
    """
    store, room = session.store, session.room
    clock = Clock(None) if room is None else room.clock
    if room is None:
        store.on_touch = clock.touch  # else nobody counts what is read

    def report(finding: Finding) -> None:
        remark(session, f"scrub: {finding.reason}")

    scrub = Scrub(
        session.inspect(),
        report,
        drop=lambda cid: room is None or bool(quarantine(store, [cid])),
        uses=lambda: clock.now,
    )
    try:
        scrub.start()  # within: a Ctrl-C may come when the thread runs, and before this returns
        yield scrub
    finally:
        scrub.close()
