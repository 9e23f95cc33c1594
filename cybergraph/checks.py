"""The one order in which bytes of others are checked, whichever way they come.

Each step costs more than the one before, and a later one may count on what an earlier one has shown. Where bytes
fail at two steps, the error of the earlier one is raised. That every path keeps to it is held by
`tests/wire/test_check_order.py`, which breaks two neighbours at a time on each.

A sealed leaf is hashed only if it does not open, which shows more: a wrong hash then speaks first.

>>> [check.name.lower() for check in PATHS["audit"]]
['limits', 'digest', 'binding', 'decode', 'place']
>>> all(list(path) == sorted(path) for path in PATHS.values())
True
"""

from enum import IntEnum
from typing import Final

from .cid import Cid
from .errors import LimitExceeded
from .limits import MAX_LEAF_BYTES, MAX_NODE_BYTES


class Check(IntEnum):
    """One step, by its turn."""

    FRAMING = 1
    """What stands around the block can be read: head and type of an answer, size and CID of a section."""
    LIMITS = 2
    """The block is no larger than one of its codec may be. Nothing larger is read to its end."""
    DIGEST = 3
    """Its bytes hash to the CID under which it was asked for."""
    BINDING = 4
    """It is of the kind that was promised: a leaf of the size that its model gives, the cipher that the grant names."""
    DECRYPTION = 5
    """What is sealed opens with the content key, in its place."""
    DECODE = 6
    """Its content has its one canonical form: the fields of a node, the zeros after a sealed leaf."""
    PLACE = 7
    """What it says fits where it is linked: model, block before, tokens, position; an opened leaf, its name at home."""


_BLOCK: Final = {
    Check.LIMITS: "checks.most_bytes",
    Check.DIGEST: "cid.Cid.verify",
    Check.BINDING: "transfer.shape.check_leaf",
    Check.DECODE: "nodes.base.Node.decode",
    Check.PLACE: "chain.reading.checked_step",
}
_OPENED: Final = {
    **_BLOCK,
    Check.BINDING: "access.opened.OpenedTable.open",
    Check.DECRYPTION: "access.leaf.open_leaf",
    Check.DECODE: "access.padding.unpad_leaf",
    Check.PLACE: "cid.Cid.verify",
}


def _path(framing: str, steps: dict[Check, str]) -> dict[Check, str]:
    return dict(sorted({Check.FRAMING: framing, **steps}.items()))


PATHS: Final[dict[str, dict[Check, str]]] = {
    "fetch": _path("peers.answers.check_type", _BLOCK),
    "fetch, as a stream": _path("car.CarReader", _BLOCK),
    "fetch, sealed": _path("peers.answers.check_type", _OPENED),
    "import": _path("carsection.read_section", _BLOCK),
    "import, sealed": _path("carsection.read_section", _OPENED),
    "audit": dict(sorted(_BLOCK.items())),
}
"""What does each step on each path. An audit looks at a home's own store, where nothing stands around a block."""


def most_bytes(cid: Cid) -> int:
    """Give the largest block that may stand behind a CID of this codec."""
    return MAX_LEAF_BYTES if cid.codec == "raw" else MAX_NODE_BYTES


def check_limits(cid: Cid, size_bytes: int) -> None:
    """Check that a block is not too large, before it is read or hashed. Raises `LimitExceeded`."""
    if size_bytes > most_bytes(cid):
        raise LimitExceeded(
            f"block {cid} of {size_bytes} bytes, limit {most_bytes(cid)}", cid=str(cid), size_bytes=size_bytes
        )
