"""`list` and `log`: the conversations of a home, how one of them grew, and all of them day by day."""

from itertools import groupby
from typing import Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.errors import BadReference, Corrupt, NameNotFound, NotFound
from ..cybergraph.index import Head
from ..cybergraph.refs import resolve_root
from .context import Session, pass_session
from .dates import Span, date_options
from .models import names_of_models
from .options import REF
from .output import answer, line, remark, say
from .text import count, size
from .wholeness import Wholeness


@click.command("list")
@pass_session
def list_conversations(session: Session) -> None:
    """List the conversations of this home.

    One entry a name, with the newest root; `log` shows the earlier ones.
    """
    whole, models = Wholeness(session), names_of_models(session)
    entries = [_entry(session, head) for head in session.index.heads()]
    for entry in entries:
        entry["model_name"] = models(entry["model"]) if "model" in entry else None
        entry["missing_blocks"] = whole.missing_blocks(entry["root"]) if "tokens" in entry else None

    def show() -> None:
        for entry in entries:
            say(entry["name"], bold=True)
            say(f"  {entry['root']}")
            say(f"  {_words(entry)}", dim=True)
        if not entries:
            say("no conversations yet; `cyberkv run PROMPT` records one")

    answer(session, {"conversations": entries}, show)


@click.command()
@click.argument("ref", type=REF, required=False)
@click.option("--all", "everything", is_flag=True, help="Every conversation by day, as without REF.")
@date_options
@pass_session
def log(session: Session, *, ref: str | None, everything: bool, since: str | None, until: str | None) -> None:
    """List the successive roots of a conversation, or of all of them by day.

    REF is a name, or any root that a name has had. The newest root stands last. Without REF, every root of every
    name comes in the order in which it was recorded, day by day in UTC; with `--json` there is then one object a
    root.
    """
    if ref is not None and everything:
        raise click.UsageError("give REF or --all")
    span = Span(since, until)
    if ref is None:
        _timeline(session, span)
        return
    name = _name_in_log(session, ref)
    entries = [_entry(session, head) for head in session.index.log(name) if span.holds(head.created)]

    def show() -> None:
        say(name, bold=True)
        for entry in entries:
            say(f"  {entry['root']}")
            say(f"    {_words(entry)}", dim=True)

    answer(session, {"name": name, "roots": entries}, show)


def _timeline(session: Session, span: Span) -> None:
    """Print the roots of all names in the order of their times; those without one come first."""
    heads = [head for each in session.index.heads() for head in session.index.log(each.name)]
    if not any(span.holds(head.created) for head in heads):
        remark(session, "nothing was recorded then")
    days = groupby(sorted(filter(lambda head: span.holds(head.created), heads), key=_when), key=_day)
    for day, of_day in days:
        if not session.as_json:
            say(day or "undated", bold=True)
        for head in of_day:
            entry = _entry(session, head)
            if session.as_json:
                line({"day": day or None, **entry})
            else:
                say(f"  {head.created[11:19]:<8}  {head.name}  {head.root}")
                say(f"            {_words({**entry, 'created': None})}", dim=True)


def _when(head: Head) -> str:
    return head.created


def _day(head: Head) -> str:
    return head.created[:10]


def _name_in_log(session: Session, ref: str) -> str:
    names = [head.name for head in session.index.heads()]
    if ref in names:
        return ref
    root = resolve_root(ref, session.index, session.store)
    for name in names:
        if any(head.root == root for head in session.index.log(name)):
            return name
    raise NameNotFound(f"no name has had the root {root}", hint="see `cyberkv list`", cid=str(root))


def _entry(session: Session, head: Head) -> dict[str, Any]:
    """Describe one root; one that cannot be read is listed with the reason."""
    entry: dict[str, Any] = {"name": head.name, "root": str(head.root), "created": head.created}
    try:
        root = load_root(session.store, head.root)
    except (NotFound, Corrupt, BadReference) as error:
        locked = isinstance(error, BadReference)  # nothing else that a name stands for is no conversation
        return {**entry, "error": error.message, "locked": locked}
    return {
        **entry,
        "model": str(root.model),
        "tokens": root.length,
        "blocks": (root.length - len(root.tail.tokens)) // root.block_size,
        "bytes": root.bytes,
        "parent": root.parent,
        "fork_at": root.fork_at,
        "approx": root.approx,
        "locked": False,
        "public": session.index.is_public(head.root),
    }


def _words(entry: dict[str, Any]) -> str:
    if entry["locked"]:
        return f"locked (sealed): `cyberkv unlock {entry['name']}` opens it"
    if "error" in entry:
        return str(entry["error"])
    words = [count(entry["tokens"], "token"), size(entry["bytes"])]
    if entry["created"] is not None:
        words.append(entry["created"] or "undated")
    if entry.get("model_name"):
        words.append(entry["model_name"])
    if entry["public"]:
        words.append("public")
    if entry.get("missing_blocks"):
        missing, blocks = f"{entry['missing_blocks']:,}", count(entry["blocks"], "block")
        words.append(f"partial: {missing} of {blocks} lack rows here, `cyberkv fetch {entry['name']}` brings them")
    if entry["approx"]:
        words.append(f"approximate: {entry['approx']}")
    if entry["parent"]:
        words.append(f"forked at {entry['fork_at']:,} from {entry['parent']}")
    return " · ".join(words)
