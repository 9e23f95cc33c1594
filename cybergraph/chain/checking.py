"""Whether the counts of a root and the fields of nodes agree with each other."""

from ..cid import Cid
from ..errors import MalformedNode
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Conversation


def check_root(root: Conversation) -> None:
    """Check that the counts of a root agree with each other. Raises `MalformedNode` naming the field."""
    tail, size = root.tail, root.block_size
    if len(tail.tokens) >= size:
        raise inconsistent("conversation", "tail", f"fewer than {size} tokens", len(tail.tokens))
    if tail.prefilled > len(tail.tokens):
        raise inconsistent("conversation", "tail.prefilled", f"at most {len(tail.tokens)}", tail.prefilled)
    if tail.kv is not None and (tail.domain is None or not tail.tokens):
        raise inconsistent("conversation", "tail.kv", "rows with tokens and a domain", "rows without")
    blocks, rest = divmod(root.length - len(tail.tokens), size)
    if rest:
        raise inconsistent("conversation", "length", f"full blocks of {size} and the tail", root.length)
    pages = -(-blocks // MAX_SEGMENT_LINKS)
    if len(root.segments) != pages:
        raise inconsistent("conversation", "segments", f"{pages} for {blocks} blocks", len(root.segments))


def expect(cid: Cid, field: str, expected: object, got: object) -> None:
    """Check one field of a node. Raises `MalformedNode` naming it and both values."""
    if expected != got:
        raise inconsistent(f"node {cid}", field, str(expected), got, cid=str(cid))


def inconsistent(what: str, field: str, expected: str, got: object, **data: str) -> MalformedNode:
    """Build the error for nodes that do not belong together."""
    return MalformedNode(
        f"{what}: field {field!r}: expected {expected}, got {got}",
        hint="the nodes are each sound but do not belong together; do not use this conversation",
        field=field, expected=expected, got=str(got), **data,
    )  # fmt: skip
