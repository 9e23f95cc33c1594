"""`list` and `log`: the conversations of a home, and how one of them grew."""

from typing import Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.errors import BadReference, Corrupt, NameNotFound, NotFound
from ..cybergraph.index import Head
from ..cybergraph.refs import resolve_root
from .context import Session, pass_session
from .models import readable_records
from .options import REF
from .output import answer, say
from .text import count, size


@click.command("list")
@pass_session
def list_conversations(session: Session) -> None:
    """List the conversations of this home.

    One entry a name, with the newest root; `log` shows the earlier ones.
    """
    models = {str(record.cid): record.name for record in readable_records(session)}
    entries = [_entry(session, head) for head in session.index.heads()]
    for entry in entries:
        entry["model_name"] = models.get(entry.get("model", ""))

    def show() -> None:
        for entry in entries:
            say(entry["name"], bold=True)
            say(f"  {entry['root']}")
            say(f"  {_words(entry)}", dim=True)
        if not entries:
            say("no conversations yet; `cyberkv run PROMPT` records one")

    answer(session, {"conversations": entries}, show)


@click.command()
@click.argument("ref", type=REF)
@pass_session
def log(session: Session, ref: str) -> None:
    """List the successive roots of a conversation.

    REF is a name, or any root that a name has had. The newest root stands last.
    """
    name = _name_in_log(session, ref)
    entries = [_entry(session, head) for head in session.index.log(name)]

    def show() -> None:
        say(name, bold=True)
        for entry in entries:
            say(f"  {entry['root']}")
            say(f"    {_words(entry)}", dim=True)

    answer(session, {"name": name, "roots": entries}, show)


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
    except (NotFound, Corrupt, BadReference) as error:  # the last where it is locked
        return {**entry, "error": error.message}
    return {
        **entry,
        "model": str(root.model),
        "tokens": root.length,
        "blocks": (root.length - len(root.tail.tokens)) // root.block_size,
        "bytes": root.bytes,
        "parent": root.parent,
        "fork_at": root.fork_at,
        "approx": root.approx,
        "public": session.index.is_public(head.root),
    }


def _words(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return str(entry["error"])
    words = [count(entry["tokens"], "token"), size(entry["bytes"]), entry["created"] or "undated"]
    if entry.get("model_name"):
        words.append(entry["model_name"])
    if entry["public"]:
        words.append("public")
    if entry["approx"]:
        words.append(f"approximate: {entry['approx']}")
    if entry["parent"]:
        words.append(f"forked at {entry['fork_at']:,} from {entry['parent']}")
    return " · ".join(words)
