"""`show`: any node, decoded."""

import click

from ..cybergraph.refs import resolve
from .context import Session, pass_session
from .nodes import outline, read_node
from .options import REF
from .output import answer, facts, say


@click.command()
@click.argument("ref", type=REF)
@pass_session
def show(session: Session, ref: str) -> None:
    """Show any node, decoded.

    REF is the name of a conversation, a CID, or its unique beginning. A leaf is raw bytes, so only its size
    and hash are shown.
    """
    cid = resolve(ref, session.index, session.store)
    data = session.store.get(cid)
    node = None if cid.codec == "raw" else read_node(data)
    about = {"cid": cid, "codec": cid.codec, "hash": cid.hash_name, "bytes": len(data)}

    def show_node() -> None:
        facts(about.items())
        if node is not None:
            say("")
            outline(node)

    answer(session, {**about, "node": node}, show_node)
