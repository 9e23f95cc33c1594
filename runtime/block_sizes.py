"""Whether a conversation can be cut into blocks of another size, asked before anything that takes long is loaded."""

from ..cybergraph.cid import Cid
from ..cybergraph.errors import Refused
from ..cybergraph.nodes import Conversation


def check_sizes(root_cid: Cid, root: Conversation, block_size: int) -> None:
    """Raise `Refused` for sizes of which neither divides the other, and for a tail that would fill a block."""
    old = root.block_size
    if max(old, block_size) % min(old, block_size):
        raise Refused(
            f"cannot cut blocks of {old} tokens into blocks of {block_size}",
            hint="choose a divisor or a multiple",
            block_size=old,
            wanted=block_size,
        )
    full = root.length - len(root.tail.tokens)
    if root.length - full // block_size * block_size >= block_size:
        raise Refused(
            f"the tail's {len(root.tail.tokens)} tokens fill a block of {block_size}; their rows are not canonical",
            hint=f"fork it first: `cyberkv fork {root_cid} --at {full}`",
            tail_tokens=len(root.tail.tokens),
        )
