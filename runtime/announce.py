"""Say that blocks are approximate before they are stored.

The index is made again from the blocks of a store, and nothing in a block shows that its bytes do not follow from its
tokens: only a root does. A program that is killed between storing such blocks and writing their root would leave
blocks that look exact. So a root that nobody needs is written first; `gc` takes it away.
"""

from collections.abc import Sequence

from ..cybergraph.chain import build_root
from ..cybergraph.cid import Cid
from ..cybergraph.nodes import EMPTY_TAIL
from ..cybergraph.store.base import Store


def announce(store: Store, model: Cid, block_size: int, blocks: Sequence[Cid], approx: str) -> None:
    """Write a root without name or title over a chain whose last blocks are approximate and not stored yet.

    What is computed on top of those is taken for approximate as well. Raises `TierFull`.
    """
    build_root(
        store, model=model, block_size=block_size, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=0, approx=approx
    )
