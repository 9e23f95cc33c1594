"""`fetch`: bring a conversation from somewhere else and record it here."""

import shlex
import shutil
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root, read_receipt
from ..cybergraph.cid import Cid
from ..cybergraph.errors import NotFound
from ..cybergraph.nodes import Model
from .block_bars import block_bars
from .context import Session, pass_session
from .fetch_all import IN_URL, fetch_all, find_root, refuse_file
from .models import how_to_register
from .names import is_whole, record_head
from .output import answer, facts, remark, say
from .places import Place, by_speed, known, named, nobody, note_speeds, routed
from .sealed import KEY_PROOF, PROOFS, Opening, read_link
from .text import duration, size
from .trust import in_words
from .vouching import Vouching

if TYPE_CHECKING:
    from ..cybergraph.transfer import FetchReport
    from ..cybergraph.transfer.source import SourceReport

INTEGRITY = "the bytes match their CIDs and stand where the conversation says; who computed them is not known"


@click.command()
@click.argument("refs", metavar="CID|LINK...", nargs=-1, required=True)
@click.option(
    "--from", "sources", metavar="URL|FILE.car|kubo:[URL]", multiple=True,
    help="Gateway, CAR file or Kubo node to bring it from; may be given several times, and all are asked at once. "
    "Else where it came from before.",
)  # fmt: skip
@click.option(
    "--router", "router_urls", metavar="URL", multiple=True,
    help="Ask this server (delegated routing) which gateways have it, and fetch from those, too.",
)  # fmt: skip
@click.option(
    "--allow-host", "hosts", metavar="HOST", multiple=True,
    help="Host to which a gateway may redirect, or that a router may name at a private address.",
)  # fmt: skip
@click.option("--name", help="Name to record it under; else its title, made unique.")
@click.option(
    "--max-bytes", metavar="BYTES", type=click.IntRange(min=0),
    help="Refuse a conversation that is larger, and stop if more comes.",
)  # fmt: skip
@click.option(
    "--password-file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Take a link's password from the first line of FILE; else it is asked for.",
)  # fmt: skip
@click.option(
    "--trust", "trusted", metavar="KEY|unsigned", multiple=True,
    help="Trust this signer from now on; `unsigned` accepts this one conversation, whoever made it.",
)  # fmt: skip
@click.option(
    "--proof", type=click.Choice(PROOFS), default=KEY_PROOF, show_default=True,
    help="How to prove access to a server that asks: by the key that all readers share, or as one of the ring of "
    "readers that was published with it. Neither says which reader.",
)  # fmt: skip
@pass_session
def fetch(
    session: Session,
    refs: tuple[str, ...],
    *,
    sources: tuple[str, ...],
    router_urls: tuple[str, ...],
    hosts: tuple[str, ...],
    name: str | None,
    max_bytes: int | None,
    password_file: Path | None,
    trusted: tuple[str, ...],
    proof: str,
) -> None:
    """Bring a conversation from somewhere else and record it here.

    Only objects (nodes and leaves) that are missing here are asked for. Each is checked against its CID and its place
    before it is stored; a wrong one is refused, by CID. Interrupted, what was checked is kept: the same command goes
    on from there. For a conversation that is known here, a name or the beginning of its CID will do. In place of the
    CID stands the URL of a conversation at a gateway as well: http://host:port/ipfs/CID.

    What was sealed for a key of this home is opened on its way, and recorded as what it is. A share LINK,
    cyberkv://CID#v1…, opens by itself; `-` reads it from standard input, where no list of processes shows it. A server
    that wants proof of access is given one, if it goes by the address that it was asked at.

    What came from elsewhere can be looked at. To go on from it takes that its signer is trusted (`cyberkv trust`, or
    --trust KEY): of a receipt who signed that, of a sealed conversation who signed the grant. A share link counts as
    trust, for you have it from somebody; `--trust unsigned` accepts this one conversation.

    Several CIDs are fetched together: what they share moves once, and whose next tokens are nearest to its beginning
    has its turn. Each is recorded under its title.
    """
    from ..cybergraph.index.marks import encode_name
    from ..cybergraph.peers.routing import Router

    for ref in refs:
        refuse_file(ref)
    if len(refs) > 1:
        if name or router_urls or password_file or proof != KEY_PROOF or any(map(_is_link, refs)):
            raise click.UsageError("several at once take CIDs, --from, --allow-host, --max-bytes and --trust alone")
        fetch_all(session, refs, sources, hosts, trusted, max_bytes)
        return
    [ref] = refs
    if name is not None:
        encode_name(name)  # a bad name must not cost a download first
    if (at := IN_URL.fullmatch(ref)) is not None:
        ref, sources = at["cid"], (at["gateway"], *sources)
    if (link := read_link(ref)) is not None:
        ref = str(link.root)
    vouching = Vouching(session, trusted, has_link=link is not None)
    opening = Opening(session, link, password_file, vouching, proof)
    routers = [Router(url) for url in router_urls]
    with ExitStack() as stack:
        places = named(sources, hosts, stack)
        _open_home(session, ref, is_given=bool(places or routers))
        root = find_root(session, ref)
        vouching.trust_keys()
        places += routed(session, root, routers, hosts, stack)
        places = by_speed(session, places or known(session, _signed_or_itself(session, root), hosts, stack))
        if routers and not places and not session.store.has(root):
            raise nobody(root, routers)
        started_s = session.clock_s()
        try:
            with block_bars(session) as progress:
                report = opening.fetch(
                    root, [place.peer for place in places], progress,
                    most_bytes=max_bytes, free_bytes=shutil.disk_usage(session.home).free,
                )  # fmt: skip
        except KeyboardInterrupt:
            how = () if proof == KEY_PROOF else (proof,)
            given = [("--from", sources), ("--router", router_urls), ("--allow-host", hosts), ("--proof", how)]
            again = "".join(f" {option} {shlex.quote(value)}" for option, values in given for value in values)
            raise click.Abort(
                f"what was checked is kept; go on with: cyberkv fetch {root if link is None else 'LINK'}{again}"
            ) from None
        seconds = session.clock_s() - started_s
    root = report.root  # of a sealed conversation, that of what was in it
    recorded = record_head(session, root, name)
    came = list(zip(places, report.sources, strict=True))
    note_speeds(session, came)
    if vouching.came and not opening.facts:
        gave = [place.source for place, each in came if place.is_new and each.blocks and each.state == "ok"]
        session.index.add_sources(root, gave)
    data: dict[str, Any] = {
        "root": root,
        "name": recorded,
        "blocks_total": report.blocks_total,
        "blocks_had": report.blocks_had,
        "blocks_fetched": report.blocks_fetched,
        "bytes_fetched": report.bytes_fetched,
        "seconds": round(seconds, 6),
        "level": "integrity",
        "sealed": opening.facts or None,
        **(signed := vouching.facts(root)),
        "peers": [place.peer.name for place in places],
        "refused": [each._asdict() for each in report.refused],
        "sources": [asdict(each) | {"router": place.router} for place, each in came],
    }
    answer(session, data, lambda: _show(recorded, report, came, seconds, opening.facts, signed))
    vouching.say(signed, root)
    _say_model(session, root)


def _open_home(session: Session, ref: str, *, is_given: bool) -> None:
    """Open the home, or make one for a conversation that can come from somewhere."""
    if is_given and is_whole(ref):
        session.create_home()
        return
    if not session.has_home:
        raise NotFound(
            f"{ref} is not here: nothing is recorded at {session.home}",
            hint="give the whole CID" if is_given else "say where it is, with --from URL or --from FILE.car",
            home=str(session.home), ref=ref,
        )  # fmt: skip
    session.open_to_write()


def _signed_or_itself(session: Session, root: Cid) -> Cid:
    receipt = read_receipt(session.store, root)
    return root if receipt is None else receipt.root


def _is_link(ref: str) -> bool:
    return ref == "-" or ref.startswith("cyberkv:")


def _show(
    name: str,
    report: "FetchReport",
    came: "list[tuple[Place, SourceReport]]",
    seconds: float,
    sealed: dict[str, Any],
    signed: dict[str, Any],
) -> None:
    had, fetched = report.blocks_had, report.blocks_fetched
    facts(
        [
            ("name", name),
            ("root", report.root),
            ("objects", f"{report.blocks_total:,}: {had:,} were here, {fetched:,} fetched"),
            ("fetched", f"{size(report.bytes_fetched)} in {duration(seconds)}"),
            ("integrity", INTEGRITY),
            ("signed by", in_words(signed["signed_by"]) if signed["signed_by"] else None),
            ("sealed by", f"{sealed['issuer']}, epoch {sealed['epoch']}" if sealed else None),
        ]
    )
    for place, source in came:
        rate = f", {size(int(source.bytes / source.busy_s))}/s" if source.busy_s else ""
        by = f", named by {place.router}" if place.router else ""
        if len(came) > 1 or by:
            say(f"from     {source.peer}: {source.blocks:,} objects, {size(source.bytes)}{rate}{by}", dim=True)
    for each in report.refused:
        say(f"refused  {each.peer}: {each.reason}", fg="yellow")


def _say_model(session: Session, root: Cid) -> None:
    model = load_root(session.store, root).model
    if all(record.cid != model for record in session.registry.records()):
        way = how_to_register(Model.decode(session.store.get(model)))
        remark(session, f"to go on from it, register its model {model}: {way}")
