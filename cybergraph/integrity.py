"""Integrity of one conversation: what its bytes and links prove, and nothing beyond.

Checked: every block hashes to its CID; every node stands where the root says (model, block before, tokens, position,
sizes of leaves); the index knows its blocks by the prefix keys of their tokens. Not checked: whether the model really
gives these keys and values. That takes a recomputation.
"""

from dataclasses import dataclass, field

from .chain import load_root, walk
from .checks import check_limits
from .cid import Cid
from .errors import BlockNotFound, Corrupt, CyberKVError
from .index import Index, disagreement
from .nodes import Conversation, Model, links
from .prefix import PrefixKey, prefix_key
from .store.base import Store
from .transfer.progress import SILENT, Progress
from .transfer.shape import Shape, check_leaf


@dataclass(slots=True)
class Integrity:
    """What a check went over and what did not pass."""

    blocks: int = 0
    """Nodes and leaves that were here and looked at, each once."""
    bytes: int = 0
    """Bytes that hash to their CIDs."""
    bound: int = 0
    """Blocks of the chain that stand in their place, counted up to the first that does not."""
    indexed: int = 0
    """Those of them that the index finds by their prefix key."""
    failed: dict[Cid, str] = field(default_factory=dict)
    """Block -> the first thing that is wrong with it."""
    approx: str | None = None
    """Why the root says that the bytes are approximate; None for exact ones."""
    absent: list[Cid] = field(default_factory=list)
    """Blocks that are not here, such as leaves that were evicted. What lies below one of them is not known."""

    disputed: dict[Cid, list[str]] = field(default_factory=dict)
    """Blocks for whose tokens trusted signers name different ones, with the keys of these in hex. Such blocks are not
    used; that says nothing against their integrity."""

    def fail(self, cid: Cid, reason: str) -> None:
        """Note that a block did not pass."""
        self.failed.setdefault(cid, reason)


def check_integrity(store: Store, index: Index, root_cid: Cid, progress: Progress = SILENT) -> Integrity:
    """Check everything a conversation needs; its parent is not looked at. Reads only.

    Raises `BlockNotFound` where the root itself is not here and `BadReference` where it is something else; everything
    else that is wrong is in the result.
    """
    found = Integrity(blocks=1)
    try:
        root = load_root(store, root_cid)
        found.bytes = store.size_bytes(root_cid) or 0
        found.approx = root.approx
    except Corrupt as error:
        found.fail(root_cid, error.message)
        return found
    shape: Shape | None = None
    try:
        shape = Shape(root_cid, root, Model.decode(store.get(root.model)))
        progress.phase("check", blocks_total=shape.nodes_and_leaves, bytes_total=shape.leaf_bytes)
    except BlockNotFound:
        pass  # the model: counted with the rest below
    except Corrupt as error:
        found.fail(_named(error, root_cid), error.message)
    _check_bytes(store, root_cid, root, found, progress)
    try:
        _check_places(store, index, root, shape, found)
    except BlockNotFound:
        pass  # the chain is followed as far as it is here; what is absent is counted
    except Corrupt as error:
        found.fail(_named(error, root_cid), error.message)
    return found


def _check_bytes(store: Store, root_cid: Cid, root: Conversation, found: Integrity, progress: Progress) -> None:
    """Hash everything below the root, as far as it can be reached."""
    ahead = [root.model, *root.segments, *(root.tail.kv or ())][::-1]
    seen = {root_cid}
    while ahead:
        cid = ahead.pop()
        if cid in seen:
            continue
        seen.add(cid)
        is_leaf = cid.codec == "raw"
        try:
            check_limits(cid, store.size_bytes(cid) or 0)
            data = store.get(cid)
            found.bytes += len(data)
            if not is_leaf:
                ahead.extend(reversed(links(data)))
        except BlockNotFound:
            found.absent.append(cid)
            continue
        except Corrupt as error:
            found.fail(cid, error.message)
        else:
            progress.advance(1, len(data) if is_leaf else 0)
        found.blocks += 1


def _check_places(store: Store, index: Index, root: Conversation, shape: Shape | None, found: Integrity) -> None:
    key: PrefixKey | None = None
    for step in walk(store, root):
        if shape is not None:
            _check_sizes(store, shape.leaves_of(step.cid, step.block))
        key = prefix_key(root.model, key, step.block.tokens)
        found.bound += 1
        answers = index.lookup(key)
        if step.cid in (rivals := disagreement(answers, step.block.prev, index.trusted)):
            found.disputed[step.cid] = sorted({signer.hex() for signer in rivals.values()})
        if any((each.block, each.prev) == (step.cid, step.block.prev) for each in answers):
            found.indexed += 1
        elif index.domain_of(step.cid) is not None:
            found.fail(step.cid, "the index does not find it by its tokens")
    if shape is not None:
        _check_sizes(store, shape.tail_leaves)


def _check_sizes(store: Store, leaves: list[tuple[Cid, int]]) -> None:
    for leaf, expected_bytes in leaves:
        if (size_bytes := store.size_bytes(leaf)) is not None:  # one that is not here is noted already
            check_leaf(leaf, expected_bytes, size_bytes)


def _named(error: CyberKVError, otherwise: Cid) -> Cid:
    text = error.data.get("cid")
    return Cid.parse(text) if isinstance(text, str) else otherwise
