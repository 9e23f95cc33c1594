"""`pin`: keep content that no name holds."""

from typing import Any

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, NotFound
from ..cybergraph.refs import resolve
from .context import Session, pass_session
from .options import REF
from .output import answer, facts, say
from .text import size


@click.group()
def pin() -> None:
    """Keep content that no name holds.

    A pin keeps a conversation, block or other node with all it needs, whatever becomes of names. `gc` deletes nothing
    that is pinned, and a cap evicts nothing of it.
    """


@pin.command()
@click.argument("ref", type=REF)
@pass_session
def add(session: Session, ref: str) -> None:
    """Keep REF and all it needs, which has to be here."""
    from ..cybergraph.keeping.reach import reach

    session.open_to_write()
    cid = _node(session, ref)
    needed = reach(session.store, [cid])
    if missing := session.store.missing(sorted(needed)):
        raise NotFound(
            f"{cid} is not whole here: {len(missing):,} objects are missing, such as {missing[0]}",
            hint="fetch it first", cid=str(cid), missing=[str(each) for each in missing[:20]],
        )  # fmt: skip
    is_new = session.index.pin(cid, session.now())
    pinned_bytes = sum(session.store.size_bytes(each) or 0 for each in needed)
    data = {"cid": cid, "new": is_new, "blocks": len(needed), "bytes": pinned_bytes}
    answer(session, data, lambda: facts([("pinned", cid), ("keeps", f"{len(needed):,} objects, {size(pinned_bytes)}")]))


@pin.command()
@click.argument("ref", type=REF)
@pass_session
def remove(session: Session, ref: str) -> None:
    """Take the pin of REF away; what nothing else needs goes with the next `gc`."""
    session.open_to_write()
    cid = resolve(ref, session.index, session.store)
    if not session.index.unpin(cid):
        raise NotFound(f"{cid} is not pinned", hint="see `cyberkv pin list`", cid=str(cid))
    answer(session, {"cid": cid}, lambda: facts([("unpinned", cid)]))


@pin.command(name="list")
@click.argument("ref", type=REF, required=False)
@pass_session
def list_pins(session: Session, ref: str | None) -> None:
    """List what is pinned, or whether REF is."""
    asked = None if ref is None else resolve(ref, session.index, session.store)
    names: dict[Cid, list[str]] = {}
    for head in session.index.heads():
        names.setdefault(head.root, []).append(head.name)
    pins: list[dict[str, Any]] = [
        {"cid": cid, "created": created, "names": names.get(cid, [])}
        for cid, created in session.index.pins().items()
        if asked in (None, cid)
    ]

    def show() -> None:
        for each in pins:
            say("  ".join([str(each["cid"]), each["created"], *each["names"]]))

    answer(session, {"pins": pins}, show)


def _node(session: Session, ref: str) -> Cid:
    cid = resolve(ref, session.index, session.store)
    if cid.codec == "raw":
        raise BadReference(
            f"{cid} is a leaf, which means nothing alone",
            hint="pin the block or the conversation that holds it: `cyberkv find --block CID`", cid=str(cid),
        )  # fmt: skip
    return cid
