"""Look through the store in the background of commands that run long."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..cybergraph.store.base import Finding
from ..cybergraph.store.quarantine import quarantine
from ..cybergraph.store.scrub import Scrub
from .context import Session
from .output import remark


@contextmanager
def scrubbing(session: Session) -> Iterator[None]:
    """Scrub for as long as the `with` lasts; what is damaged is said on stderr and, where possible, taken out."""
    store, room = session.store, session.room

    def report(finding: Finding) -> None:
        remark(session, f"scrub: {finding.reason}")

    scrub = Scrub(
        session.inspect(),
        report,
        drop=lambda cid: room is None or bool(quarantine(store, [cid])),
        uses=lambda: 0 if room is None else room.clock.now,
    )
    scrub.start()
    try:
        yield
    finally:
        scrub.close()
