"""Put right what a check has found: damaged blocks go aside, sound ones come from where they once came from."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from .. import chain
from ..cid import Cid
from ..errors import Corrupt, CyberKVError
from ..index import Index
from ..peers import Peer, is_file, open_peer
from ..store.base import Finding
from ..store.disk import DiskStore
from ..transfer import fetch
from .quarantine import quarantine, quarantine_malformed


@dataclass(slots=True)
class Repaired:
    """What a repair did."""

    dropped: list[Cid] = field(default_factory=list)
    """Blocks that were damaged or malformed and are no longer here."""
    refetched: dict[Cid, int] = field(default_factory=dict)
    """Conversation -> blocks that were brought back."""
    failed: dict[Cid, str] = field(default_factory=dict)
    """Conversation -> why what it lacks could not be brought back."""
    indexed_blocks: int = 0
    """Blocks in the index that was made anew."""


def repair(
    store: DiskStore,
    index: Index,
    findings: Iterable[Finding],
    sources: Sequence[str] = (),
    open_source: Callable[[str], Peer] = open_peer,
) -> Repaired:
    """Drop what is damaged, fetch what conversations in use lack for it, and make the index anew.

    Asked are the peers that a conversation was fetched from, then `sources`: CAR files for any conversation, others
    only for those that came from elsewhere or were published, for to ask for a block is to name it. `open_source` knows
    what opens those that ask for a credential.
    """
    found = list(findings)
    done = Repaired()
    done.dropped += quarantine(
        store, [each.cid for each in found if each.cid and each.what == "block"], unreadable=True
    )
    done.dropped += quarantine_malformed(store, [each.cid for each in found if each.cid and each.what == "node"])
    lost = {each.cid for each in found}
    known = index.sources()
    public = set(index.published())
    for root in index.roots():
        if lost.isdisjoint(_lacking(store, root)) or chain.read_receipt(store, root) is not None:
            continue  # what a receipt signs is a root as well
        may_ask = root in known or root in public
        asked = [*known.get(root, ()), *(each for each in sources if may_ask or is_file(each))]
        try:
            done.refetched[root] = _fetch(store, index, root, asked, open_source)
        except CyberKVError as error:
            done.failed[root] = error.message
    done.indexed_blocks = index.rebuild(store).blocks
    return done


def _lacking(store: DiskStore, root: Cid) -> list[Cid]:
    try:
        return chain.missing(store, root)
    except Corrupt:
        return []  # no conversation, or one whose nodes do not belong together: nothing that fetching would help


def _fetch(
    store: DiskStore, index: Index, root: Cid, sources: Sequence[str], open_source: Callable[[str], Peer]
) -> int:
    with ExitStack() as stack:
        peers = []
        for source in dict.fromkeys(sources):
            try:
                peers.append(stack.enter_context(open_source(source)))
            except CyberKVError:
                if source == sources[-1] and not peers:
                    raise
        return fetch(store, index, root, peers).blocks_fetched
