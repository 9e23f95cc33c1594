"""`pin`: keep content that no name holds."""

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, CyberKVError, NameNotFound, NotFound
from ..cybergraph.peers.kubo.address import DEFAULT_ADDRESS
from ..cybergraph.refs import resolve
from .context import Session, pass_session
from .kubo import kubo_rpc
from .options import REF
from .output import answer, facts, say
from .text import count, preview, size

if TYPE_CHECKING:
    from ..cybergraph.peers.kubo import KuboPin

_TITLE_CHARS = 60
_NAME_CHARS = 200


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
            f"{cid} is not whole here: {count(len(missing), 'object')} missing, such as {missing[0]}",
            hint="fetch it first", cid=str(cid), missing=[str(each) for each in missing[:20]],
        )  # fmt: skip
    is_new = session.index.pin(cid, session.now())
    pinned_bytes = sum(session.store.size_bytes(each) or 0 for each in needed)
    data = {"cid": cid, "new": is_new, "blocks": len(needed), "bytes": pinned_bytes}
    keeps = f"{count(len(needed), 'object')}, {size(pinned_bytes)}"
    answer(session, data, lambda: facts([("pinned", cid), ("keeps", keeps)]))


@pin.command()
@click.argument("ref", type=REF)
@pass_session
def remove(session: Session, ref: str) -> None:
    """Take the pin of REF away; what nothing else needs goes with the next `gc`.

    A pin outlives the name of what it keeps; then REF is the CID.
    """
    session.open_to_write()
    cid = _pinned(session, ref)
    if not session.index.unpin(cid):
        raise NotFound(f"{cid} is not pinned", hint="see `cyberkv pin list`", cid=str(cid))
    answer(session, {"cid": cid}, lambda: facts([("unpinned", cid)]))


@pin.command(name="list")
@click.argument("ref", type=REF, required=False)
@click.option(
    "--kubo", metavar="[URL]", is_flag=False, flag_value=DEFAULT_ADDRESS,
    help=f"List also what `publish --kubo` pinned on a node, by the address of its RPC; alone, {DEFAULT_ADDRESS}.",
)  # fmt: skip
@pass_session
def list_pins(session: Session, ref: str | None, *, kubo: str | None) -> None:
    """List what is pinned, or whether REF is.

    What no name holds any more is shown by the title that it was recorded under. A node says itself what it has pinned:
    each pin there whose name begins with cyberkv/ is listed, whoever set it.
    """
    asked = None if ref is None else _pinned(session, ref)
    names: dict[Cid, list[str]] = {}
    for head in session.index.heads():
        names.setdefault(head.root, []).append(head.name)
    pins: list[dict[str, Any]] = [
        {"cid": cid, "created": created, "names": names.get(cid, []), "title": _title(session, cid)}
        for cid, created in session.index.pins().items()
        if asked in (None, cid)
    ]
    node, there = (None, []) if kubo is None else _pinned_on(kubo)
    there = [each for each in there if asked in (None, each.cid)]

    def show() -> None:
        for each in pins:
            named = each["names"] or ([f"was {preview(each['title'], _TITLE_CHARS)}"] if each["title"] else [])
            say("  ".join([str(each["cid"]), each["created"], *named]))
        for pin in there:
            say(f"{pin.cid}  on {node}  {preview(pin.name, _NAME_CHARS)}")

    told = [{"cid": str(each.cid), "name": each.name} for each in there]
    answer(session, {"pins": pins} | ({} if node is None else {"kubo": {"node": node, "pins": told}}), show)


def _pinned_on(address: str) -> "tuple[str, list[KuboPin]]":
    """Give the node by its address, and its pins. Raises as `kubo_rpc` and `named_pins`."""
    from ..cybergraph.peers import Patience
    from ..cybergraph.peers.kubo import named_pins

    with closing(kubo_rpc(address, Patience())) as rpc:
        return rpc.name, named_pins(rpc)


def _pinned(session: Session, ref: str) -> Cid:
    try:
        return resolve(ref, session.index, session.store)
    except NameNotFound as error:
        hint = "a pin outlives the name of what it keeps: `cyberkv pin list` has its CID"
        raise NameNotFound(error.message, hint=hint, **error.data) from None


def _title(session: Session, cid: Cid) -> str | None:
    """Give the title of a conversation; None for another node, or where it cannot be read."""
    try:
        return load_root(session.store, cid).title
    except CyberKVError:
        return None


def _node(session: Session, ref: str) -> Cid:
    cid = resolve(ref, session.index, session.store)
    if cid.codec == "raw":
        raise BadReference(
            f"{cid} is a leaf, which means nothing alone",
            hint="pin the block or the conversation that holds it: `cyberkv find --block CID`", cid=str(cid),
        )  # fmt: skip
    return cid
