"""`fetch` of several conversations at once."""

import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.chain import read_receipt
from ..cybergraph.cid import TEXT_CHARS, Cid
from ..cybergraph.errors import BadReference, NameNotFound
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session
from .names import is_whole
from .output import answer
from .places import by_speed, known, named
from .prompts import is_file
from .several import record_all, refusals, show_all
from .vouching import Vouching, is_ours

if TYPE_CHECKING:
    from ..cybergraph.nodes import Conversation, Receipt
    from ..cybergraph.peers import Peer

IN_URL: Final = re.compile(r"(?P<gateway>https?://[^/]+)/ipfs/(?P<cid>[^/?#]+)/?", re.IGNORECASE)


def refuse_file(ref: str) -> None:
    """Say how a CAR file is fetched from, where it is given for what to fetch. Raises `BadReference`."""
    if not ref.lower().endswith(".car"):
        return
    from ..cybergraph.peers import CarFilePeer

    roots: tuple[Cid, ...] = ()
    if is_file(ref):
        with CarFilePeer(Path(ref)) as file:
            roots = file.roots
    which = str(roots[0]) if len(roots) == 1 else "CID"
    raise BadReference(
        f"{ref} is a file; what is fetched from it has a CID",
        hint=f"cyberkv fetch {which} --from {shlex.quote(ref)}", path=ref, roots=[str(root) for root in roots],
    )  # fmt: skip


def find_root(session: Session, ref: str) -> Cid:
    """Read a CID, or find what is meant among what is here. Raises `MalformedCid`, `NameNotFound`, `BadReference`."""
    if is_whole(ref):
        return Cid.parse(ref)
    try:
        return resolve(ref, session.index, session.store)
    except NameNotFound as error:
        raise NameNotFound(
            error.message,
            hint=f"give the whole CID, {TEXT_CHARS} letters: only one that is known here may be cut", **error.data,
        ) from None  # fmt: skip


def fetch_all(
    session: Session,
    refs: Sequence[str],
    sources: Sequence[str],
    hosts: tuple[str, ...],
    words: tuple[str, ...],
    most_bytes: int | None,
) -> None:
    """Fetch several conversations, or what several receipts sign, in turns, and record each under its title.

    Raises `BadReference` for one that is sealed, and as `fetch_several`.
    """
    from ..cybergraph.access.receipt import check_receipt
    from ..cybergraph.transfer import fetch_several

    urls = [found for ref in refs if (found := IN_URL.fullmatch(ref))]
    refs = [found["cid"] if (found := IN_URL.fullmatch(ref)) else ref for ref in refs]
    sources = list(dict.fromkeys((*(url["gateway"] for url in urls), *sources)))
    if sources and all(map(is_whole, refs)):
        session.create_home()
    else:
        session.open_to_write()
    cids = [find_root(session, ref) for ref in refs]
    with ExitStack() as stack:
        places = named(sources, hosts, stack)
        if not places:
            meant = (cid if (signed := read_receipt(session.store, cid)) is None else signed.root for cid in cids)
            before = (place for root in meant for place in known(session, root, hosts, stack))
            places = list({place.source: place for place in before}.values())
        places = by_speed(session, places)
        peers = [place.peer for place in places]
        receipts: dict[Cid, Receipt | None] = dict(read_signed(session, cid, peers) for cid in cids)
        vouching = {root: Vouching(session, words, has_link=False) for root in receipts}
        for root, receipt in receipts.items():
            vouching[root].trust_keys()
            if receipt is not None:
                check_receipt(receipt)
                vouching[root].heard(receipt)
        came: set[Cid] = set()

        def begin(root: Cid, conversation: "Conversation") -> None:
            if (signed := receipts[root]) is not None:
                check_receipt(signed, conversation)
            if not is_ours(session, root):
                came.add(root)
            vouching[root].begin(root, conversation)

        started_s = session.clock_s()
        try:
            with block_bars(session) as progress:
                reports = fetch_several(
                    session.store, session.index, list(receipts), peers, progress=progress, most_bytes=most_bytes,
                    free_bytes=shutil.disk_usage(session.home).free, begin=begin,
                    signers={root: receipt.producer for root, receipt in receipts.items() if receipt is not None},
                )  # fmt: skip
        except KeyboardInterrupt:
            raise click.Abort("what was checked is kept; the same command goes on from there") from None
        seconds = session.clock_s() - started_s
    for receipt in filter(None, receipts.values()):
        session.store.put_node(receipt)
    rows = record_all(session, reports, places, came)
    rows = [row | vouching[row["root"]].facts(row["root"]) for row in rows]
    data: dict[str, Any] = {
        "conversations": rows, "seconds": round(seconds, 6), "level": "integrity",
        "peers": [peer.name for peer in peers], "refused": refusals(reports),
    }  # fmt: skip
    answer(session, data, lambda: show_all(rows, data["refused"]))
    for row in rows:
        vouching[row["root"]].say(row, row["root"])


def read_signed(session: Session, cid: Cid, peers: "Sequence[Peer]") -> "tuple[Cid, Receipt | None]":
    """Give the conversation that is meant, and the receipt if it is meant by that."""
    from ..cybergraph.nodes import Conversation, Receipt
    from ..cybergraph.transfer.single import find_node

    node = None if cid.codec == "raw" else find_node(session.store, cid, peers)
    if isinstance(node, Receipt):
        return node.root, node
    if not isinstance(node, Conversation):
        raise BadReference(
            f"{cid} is a {node.TYPE if node else 'leaf'}, not a conversation",
            hint="what is sealed is fetched alone", cid=str(cid),
        )  # fmt: skip
    return cid, None
