"""`fetch`: bring a conversation from somewhere else and record it here."""

import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.chain import load_root
from ..cybergraph.cid import TEXT_CHARS, Cid
from ..cybergraph.errors import BadReference, CyberKVError, NotFound
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session, pass_session
from .kubo import open_source
from .names import say_moves, slug, unique
from .output import answer, facts, remark, say
from .text import duration, size

if TYPE_CHECKING:
    from ..cybergraph.peers import Peer
    from ..cybergraph.transfer import FetchReport

_IN_URL: Final = re.compile(r"(?P<gateway>https?://[^/]+)/ipfs/(?P<cid>[^/?#]+)/?", re.IGNORECASE)
INTEGRITY = "the bytes match their CIDs and stand where the conversation says; who computed them is not known"


@click.command()
@click.argument("ref", metavar="CID")
@click.option(
    "--from", "sources", metavar="URL|FILE.car|kubo:[URL]", multiple=True,
    help="Gateway, CAR file or Kubo node to bring it from; may be given several times, and all are asked at once. "
    "Else where it came from before.",
)  # fmt: skip
@click.option("--name", help="Name to record it under; else its title, made unique.")
@click.option(
    "--max-bytes", metavar="BYTES", type=click.IntRange(min=0),
    help="Refuse a conversation that is larger, and stop if more comes.",
)  # fmt: skip
@pass_session
def fetch(session: Session, ref: str, *, sources: tuple[str, ...], name: str | None, max_bytes: int | None) -> None:
    """Bring a conversation from somewhere else and record it here.

    Only objects (nodes and leaves) that are missing here are asked for. Each is checked against its CID and its place
    before it is stored; a wrong one is refused, by CID. Interrupted, what was checked is kept: the same command goes
    on from there. For a conversation that is known here, a name or the beginning of its CID will do. In place of the
    CID stands the URL of a conversation at a gateway as well: http://host:port/ipfs/CID.
    """
    from ..cybergraph.index.marks import encode_name
    from ..cybergraph.transfer import fetch as fetch_blocks

    if name is not None:
        encode_name(name)  # a bad name must not cost a download first
    if (at := _IN_URL.fullmatch(ref)) is not None:
        ref, sources = at["cid"], (at["gateway"], *sources)
    with ExitStack() as stack:
        peers = _open(session, ref, sources, stack)
        root = _root(session, ref)
        peers = peers or _known(session, root, stack)
        is_ours = _is_ours(session, root)
        started_s = session.clock_s()
        try:
            with block_bars(session) as progress:
                report = fetch_blocks(
                    session.store, session.index, root, peers, progress=progress, most_bytes=max_bytes,
                    free_bytes=shutil.disk_usage(session.home).free,
                )  # fmt: skip
        except KeyboardInterrupt:
            again = "".join(f" --from {shlex.quote(source)}" for source in sources)
            raise click.Abort(f"what was checked is kept; go on with: cyberkv fetch {root}{again}") from None
        seconds = session.clock_s() - started_s
    recorded = _record(session, root, name)
    if sources and not is_ours:
        gave = [
            source for source, each in zip(sources, report.sources, strict=True) if each.blocks and each.state == "ok"
        ]
        session.index.add_sources(root, [_lasting(source) for source in gave])
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
        "sources": [asdict(each) for each in report.sources],
    }
    answer(session, data, lambda: _show(recorded, report, seconds))
    _say_model(session, root)


def _open(session: Session, ref: str, sources: Sequence[str], stack: ExitStack) -> "list[Peer]":
    """Open the sources and the home; a source that is not there is said before a home is made."""
    peers = [stack.enter_context(open_source(source)) for source in sources]
    if peers and _is_whole(ref):
        session.create_home()
        return peers
    if not session.has_home:
        raise NotFound(
            f"{ref} is not here: nothing is recorded at {session.home}",
            hint="give the whole CID" if peers else "say where it is, with --from URL or --from FILE.car",
            home=str(session.home), ref=ref,
        )  # fmt: skip
    session.open_to_write()
    return peers


def _known(session: Session, root: Cid, stack: ExitStack) -> "list[Peer]":
    """Open the peers that gave the conversation before, as far as they are there."""
    peers: list[Peer] = []
    for source in session.index.sources().get(root, ()):
        with suppress(CyberKVError):
            peers.append(stack.enter_context(open_source(source)))
    return peers


def _lasting(source: str) -> str:
    """Name a source so that it is found again from another folder."""
    from ..cybergraph.peers import is_file

    return str(Path(source).resolve()) if is_file(source) else source


def _is_ours(session: Session, root: Cid) -> bool:
    """Say whether a conversation is here without having come from anywhere.

    It then stays one that never left: what a copy of it mends makes it neither evictable nor known to others.
    """
    is_here = session.store.has(root) or root in session.index.roots()
    return is_here and root not in session.index.sources()


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
    say_moves(session, name, root)
    session.index.set_head(name, root, session.now())
    return name


def _show(name: str, report: "FetchReport", seconds: float) -> None:
    had, fetched = report.blocks_had, report.blocks_fetched
    facts(
        [
            ("name", name),
            ("root", report.root),
            ("objects", f"{report.blocks_total:,}: {had:,} were here, {fetched:,} fetched"),
            ("fetched", f"{size(report.bytes_fetched)} in {duration(seconds)}"),
            ("integrity", INTEGRITY),
        ]
    )
    for source in report.sources if len(report.sources) > 1 else ():
        rate = f", {size(int(source.bytes / source.busy_s))}/s" if source.busy_s else ""
        say(f"from     {source.peer}: {source.blocks:,} objects, {size(source.bytes)}{rate}", dim=True)
    for each in report.refused:
        say(f"refused  {each.peer}: {each.reason}", fg="yellow")


def _say_model(session: Session, root: Cid) -> None:
    model = load_root(session.store, root).model
    if all(record.cid != model for record in session.registry.records()):
        remark(session, f"to go on from it, register its model {model} with `cyberkv model add`")
