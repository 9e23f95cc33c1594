"""`publish`: make a conversation public, after showing what that means."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import tokens
from ..cybergraph.errors import CyberKVError, Refused
from ..cybergraph.peers.kubo.address import DEFAULT_ADDRESS
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session, pass_session
from .kubo import kubo_rpc
from .models import find_codec
from .names import name_of_head
from .options import REF
from .output import answer, facts, remark, say
from .served import served_urls
from .text import plain, preview, size

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Conversation
    from ..cybergraph.peers.kubo import KuboRpc
    from ..cybergraph.transfer import PublishPlan
    from ..cybergraph.transfer.progress import Progress

SHOWN_CHARS = 2000
"""A longer text is shown by its two ends."""
TITLE_CHARS = 80
FOREVER = (
    "This cannot be undone: whoever fetches a block may keep it and pass it on. Keys and values give the text back, "
    "even to somebody who has nothing else."
)


@click.command()
@click.argument("ref", type=REF)
@click.option("--public", is_flag=True, help="Let anyone read it, for good. Without this nothing is published.")
@click.option(
    "--car", "car", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write a CAR file instead of adding to what `serve` serves.",
)  # fmt: skip
@click.option(
    "--kubo", metavar="[URL]", is_flag=False, flag_value=DEFAULT_ADDRESS,
    help=f"Send it to a Kubo node and pin it there, by the address of its RPC; alone, {DEFAULT_ADDRESS}.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show everything that would become public, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@pass_session
def publish(
    session: Session, ref: str, *, public: bool, car: Path | None, kubo: str | None, dry_run: bool, yes: bool
) -> None:
    """Make a conversation public, after showing what that means.

    Conversations are private until this command says otherwise. With `--public` it shows the text and counts the
    objects that become readable by anyone, and asks. Then `cyberkv serve` serves them, or FILE holds them, or a Kubo
    node has them pinned. An existing FILE is replaced only if it holds this same root. An upload to a node that was
    stopped goes on where it stopped; the node's credential, if it wants one, is read from CYBERKV_KUBO_AUTH
    (`bearer:TOKEN` or `basic:USER:PASSWORD`) or from the file named by CYBERKV_KUBO_AUTH_FILE. `--dry-run --json` gives
    the whole text and every CID.
    """
    from ..cybergraph.transfer import plan_publish, publish_car, publish_here

    if car is not None and kubo is not None:
        raise click.UsageError("--car and --kubo are two destinations: give one at a time")
    rpc = None if kubo is None else kubo_rpc(kubo)

    if not dry_run:
        session.open_to_write()
    cid = resolve(ref, session.index, session.store)
    plan = plan_publish(session.store, session.index, cid, "public" if public else None)
    recorded, cid, root = cid, plan.root, plan.conversation
    if car is not None:
        _check_free(car, cid)
    text = _text(session, root)
    pinned: dict[str, Any] = {}
    # Whoever is asked has to see it, and whoever wants quiet has to say so together with --yes.
    if not (session.as_json and dry_run) and not (session.quiet and yes):
        for each in _shown(plan, root, text):
            click.echo(plain(each), err=not dry_run)
    if not dry_run:
        _confirm(yes=yes)
        with block_bars(session) as progress:
            if rpc is not None:
                pinned = _pin(session, ref, recorded, plan, rpc, progress)
            elif car is None:
                publish_here(session.store, session.index, plan, progress)
            else:
                publish_car(session.store, plan, car, progress)
        _move_name(session, ref, recorded, plan)
    if rpc is not None:
        urls = [f"ipfs://{cid}"]
    elif car is not None:
        urls = [car.resolve().as_uri()]
    else:
        urls = [f"{url}/ipfs/{cid}" for url in served_urls(session.home)]
    data = {
        "root": cid,
        "visibility": plan.visibility,
        "published": not dry_run,
        "blocks": plan.blocks,
        "bytes": plan.bytes,
        "withheld": [each._asdict() for each in plan.withheld],
        "urls": urls,
        "text": text,
        "plan": _listed(plan),
    } | ({"kubo": pinned} if pinned else {})
    answer(session, data, lambda: _show(cid, urls, pinned, dry_run=dry_run))


def _pin(
    session: Session, ref: str, recorded: "Cid", plan: "PublishPlan", rpc: "KuboRpc", progress: "Progress"
) -> dict[str, Any]:
    """Upload to a node; give what the answer says about it."""
    from ..cybergraph.transfer.kubo import publish_kubo

    name = name_of_head(session.index, ref, recorded)
    earlier = [head.root for head in session.index.log(name)] if name else []
    pin_name = f"cyberkv/{name or plan.root}"
    with closing(rpc):
        report = publish_kubo(session.store, plan, rpc, pin_name, earlier, progress)
    return {"node": str(rpc.address), "pinned_as": pin_name, **asdict(report)}


def _move_name(session: Session, ref: str, recorded: "Cid", plan: "PublishPlan") -> None:
    """Make the public root the head of the name: it is the one to share, and no other way leads to it."""
    name = name_of_head(session.index, ref, recorded)
    if plan.root == recorded or name is None:
        return
    session.index.set_head(name, plan.root, plan.conversation.created)
    remark(session, f"{name} now ends at {plan.root}, which does not name the private parent; `log` has both roots")


def _check_free(path: Path, root: "Cid") -> None:
    """Refuse to write over anything but an earlier file of the same conversation."""
    from ..cybergraph.peers import CarFilePeer

    if not path.exists():
        return
    try:
        with CarFilePeer(path) as present:
            same = present.roots == (root,)
    except CyberKVError:
        same = False
    if not same:
        raise Refused(
            f"{path} exists and holds something else", hint="choose another name, or move it away", path=str(path)
        )


def _text(session: Session, root: "Conversation") -> str | None:
    codec = find_codec(session, root.model)
    return None if codec is None else codec.decode(tokens(session.store, root))


def _listed(plan: "PublishPlan") -> dict[str, Any]:
    return {
        "kinds": _kinds(plan),
        "public_already": plan.public_already,
        "items": [{"cid": each.cid, "kind": each.kind, "bytes": each.size_bytes} for each in plan.items],
    }


def _kinds(plan: "PublishPlan") -> dict[str, dict[str, int]]:
    """Count the blocks of each kind and their bytes, in writing order."""
    counts = Counter[str](each.kind for each in plan.items)
    sizes: Counter[str] = Counter()
    for each in plan.items:
        sizes[each.kind] += each.size_bytes
    return {kind: {"count": count, "bytes": sizes[kind]} for kind, count in counts.items()}


def _shown(plan: "PublishPlan", root: "Conversation", text: str | None) -> Iterator[str]:
    yield "This becomes readable by anyone, for good:"
    yield f"  root      {plan.root}"
    yield f"  title     {preview(root.title, TITLE_CHARS) or 'none'}, recorded {root.created or 'at an unknown time'}"
    yield f"  model     {root.model}"
    if text is None:
        yield f"  text      all {root.length:,} tokens; its model is not registered here, so it cannot be shown"
    else:
        yield f"  text      {root.length:,} tokens, {len(text):,} characters:"
        yield from (f"  | {line}" for line in _excerpt(text).splitlines())
    for kind, sums in _kinds(plan).items():
        yield f"  {kind:<9} {sums['count']:>9,}  {size(sums['bytes'])}"
    yield f"  objects   {plan.blocks:>9,}  {size(plan.bytes)} in all, {plan.public_already:,} of them public already"
    for withheld in plan.withheld:
        yield f"  withheld  {withheld.cid}: {withheld.reason}"
    yield FOREVER


def _excerpt(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    hidden = len(text) - 2 * half
    return f"{text[:half]}\n… {hidden:,} characters more: see them with --dry-run --json …\n{text[-half:]}"


def _confirm(*, yes: bool) -> None:
    """Go on only if the user agrees. Raises `Refused`."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            "not published: there is no terminal to ask on", hint="if all of the above may be public, add --yes"
        )
    if not click.confirm("Publish it?", default=False, err=True):
        raise Refused("not published: the answer was no", hint="nothing was changed")


def _show(cid: "Cid", urls: list[str], pinned: dict[str, Any], *, dry_run: bool) -> None:
    if dry_run:
        say("nothing was changed")
        return
    facts([("published", cid), *(("at", url) for url in urls)])
    if pinned:
        parts = f"{pinned['parts_had']} of {pinned['parts_had'] + pinned['parts_sent']} parts were there"
        facts([("pinned on", pinned["node"]), ("as", pinned["pinned_as"])])
        facts([("sent", f"{size(pinned['bytes_sent'])}, {parts}")])
        facts([("announced", "yes" if pinned["announced"] else f"no: {pinned['note']}")])
    elif urls:
        source = f"{cid} --from FILE" if urls[0].startswith("file:") else urls[0]
        say(f"elsewhere: cyberkv fetch {source}")
    else:
        say("`cyberkv serve` serves it; elsewhere, `cyberkv fetch` brings it from there")
