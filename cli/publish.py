"""`publish`: make a conversation public, after showing what that means."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import tokens
from ..cybergraph.errors import CyberKVError, Refused
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session, pass_session
from .models import find_codec
from .names import name_of_head
from .options import LISTEN, REF
from .output import answer, facts, remark, say
from .text import plain, preview, size

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Conversation
    from ..cybergraph.transfer import PublishPlan

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
@click.option("--dry-run", is_flag=True, help="Show everything that would become public, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@pass_session
def publish(session: Session, ref: str, *, public: bool, car: Path | None, dry_run: bool, yes: bool) -> None:
    """Make a conversation public, after showing what that means.

    Conversations are private until this command says otherwise. With `--public` it shows the text and counts the
    blocks that become readable by anyone, and asks. Then `cyberkv serve` serves them, or FILE holds them. An existing
    FILE is replaced only if it holds this same root. `--dry-run --json` gives the whole text and every CID.
    """
    from ..cybergraph.transfer import plan_publish, publish_car, publish_here

    if not dry_run:
        session.open_to_write()
    cid = resolve(ref, session.index, session.store)
    plan = plan_publish(session.store, session.index, cid, "public" if public else None)
    recorded, cid, root = cid, plan.root, plan.conversation
    if car is not None:
        _check_free(car, cid)
    text = _text(session, root)
    # Whoever is asked has to see it, and whoever wants quiet has to say so together with --yes.
    if not (session.as_json and dry_run) and not (session.quiet and yes):
        for each in _shown(plan, root, text):
            click.echo(plain(each), err=not dry_run)
    if not dry_run:
        _confirm(yes=yes)
        with block_bars(session) as progress:
            if car is None:
                publish_here(session.store, session.index, plan, progress)
            else:
                publish_car(session.store, plan, car, progress)
        _move_name(session, ref, recorded, plan)
    url = f"http://{LISTEN}/ipfs/{cid}" if car is None else car.resolve().as_uri()
    data = {
        "root": cid,
        "visibility": plan.visibility,
        "published": not dry_run,
        "blocks": plan.blocks,
        "bytes": plan.bytes,
        "withheld": [each._asdict() for each in plan.withheld],
        "urls": [url],
        "text": text,
        "plan": _listed(plan),
    }
    answer(session, data, lambda: _show(cid, url, car, dry_run=dry_run))


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
    yield f"  in all    {plan.blocks:>9,}  {size(plan.bytes)}, {plan.public_already:,} of them public already"
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


def _show(cid: "Cid", url: str, car: Path | None, *, dry_run: bool) -> None:
    if dry_run:
        say("nothing was changed")
        return
    facts([("published", cid), ("at", url)])
    if car is None:
        say("served by `cyberkv serve`; elsewhere, `cyberkv fetch` brings it from there")
