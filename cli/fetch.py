"""`fetch`: bring a conversation from somewhere else and record it here."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.cid import TEXT_CHARS, Cid
from ..cybergraph.errors import BadReference
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session, pass_session
from .names import slug, unique
from .output import answer, facts, remark, say
from .text import duration, size

if TYPE_CHECKING:
    from ..cybergraph.peers import Peer
    from ..cybergraph.transfer import FetchReport

INTEGRITY = "the bytes match their CIDs and stand where the conversation says; who computed them is not known"


@click.command()
@click.argument("ref", metavar="CID")
@click.option(
    "--from", "sources", metavar="URL|FILE.car", multiple=True,
    help="Gateway or CAR file to bring it from; may be given several times, asked in this order.",
)  # fmt: skip
@click.option("--name", help="Name to record it under; else its title, made unique.")
@pass_session
def fetch(session: Session, ref: str, *, sources: tuple[str, ...], name: str | None) -> None:
    """Bring a conversation from somewhere else and record it here.

    Only blocks that are missing here are asked for. Each is checked against its CID and its place before it is
    stored; a wrong one is refused, by CID. Interrupted, what was checked is kept: the same command goes on from
    there. For a conversation that is known here, a name or the beginning of its CID will do.
    """
    from ..cybergraph.index.marks import encode_name
    from ..cybergraph.transfer import fetch as fetch_blocks

    if name is not None:
        encode_name(name)  # a bad name must not cost a download first
    with ExitStack() as stack:
        peers = _open(session, ref, sources, stack)
        root = _root(session, ref)
        started_s = session.clock_s()
        try:
            with block_bars(session) as progress:
                report = fetch_blocks(session.store, session.index, root, peers, progress=progress)
        except KeyboardInterrupt:
            again = "".join(f" --from {source}" for source in sources)
            raise click.Abort(f"what was checked is kept; go on with: cyberkv fetch {root}{again}") from None
        seconds = session.clock_s() - started_s
    recorded = _record(session, root, name)
    data: dict[str, Any] = {
        "root": root,
        "name": recorded,
        "blocks_total": report.blocks_total,
        "blocks_had": report.blocks_had,
        "blocks_fetched": report.blocks_fetched,
        "bytes_fetched": report.bytes_fetched,
        "seconds": round(seconds, 6),
        "level": "integrity",
        "peers": [peer.name for peer in peers],
        "refused": [each._asdict() for each in report.refused],
    }
    answer(session, data, lambda: _show(recorded, report, seconds))
    _say_model(session, root)


def _open(session: Session, ref: str, sources: Sequence[str], stack: ExitStack) -> "list[Peer]":
    """Open the sources and the home; a source that is not there is said before a home is made."""
    from ..cybergraph.peers import open_peer

    peers = [stack.enter_context(open_peer(source)) for source in sources]
    if peers and _is_whole(ref):
        session.create_home()
    else:
        session.open_to_write()
    return peers


def _is_whole(ref: str) -> bool:
    return len(ref) == TEXT_CHARS and ref.startswith("b")


def _root(session: Session, ref: str) -> Cid:
    return Cid.parse(ref) if _is_whole(ref) else resolve(ref, session.index, session.store)


def _record(session: Session, root: Cid, name: str | None) -> str:
    """Make the conversation the head of a name: the one given, one it heads already, or one of its title."""
    from ..cybergraph.index.marks import encode_name

    if name is None:
        name = next((head.name for head in session.index.heads() if head.root == root), None)
    if name is None:
        base = load_root(session.store, root).title
        try:
            encode_name(base)
        except BadReference:  # foreign text
            base = slug(base)
        name = unique(session.index, base)
    session.index.set_head(name, root, session.now())
    return name


def _show(name: str, report: "FetchReport", seconds: float) -> None:
    had, fetched = report.blocks_had, report.blocks_fetched
    facts(
        [
            ("name", name),
            ("root", report.root),
            ("blocks", f"{report.blocks_total:,}: {had:,} were here, {fetched:,} fetched"),
            ("fetched", f"{size(report.bytes_fetched)} in {duration(seconds)}"),
            ("integrity", INTEGRITY),
        ]
    )
    for each in report.refused:
        say(f"refused  {each.peer}: {each.reason}", fg="yellow")


def _say_model(session: Session, root: Cid) -> None:
    model = load_root(session.store, root).model
    if all(record.cid != model for record in session.registry.records()):
        remark(session, f"to go on from it, register its model {model} with `cyberkv model add`")
