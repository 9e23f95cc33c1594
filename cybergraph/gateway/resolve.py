"""Paths through nodes: from the CID in a URL, along links, to the block that is asked for.

A path names map keys and list indexes, and goes on in the next block wherever it meets a link. It ends at a block:
values inside of one have no address of their own, as the path gateway specification has it.

>>> split_path(b"/ipfs/bafy/a%2Fb/./c/../d/")
('bafy', ('a', 'b', 'd'), True)
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote, unquote_to_bytes

from ..cid import Cid
from ..dagcbor import decode as own_value
from ..errors import BlockNotFound, Corrupt
from ..foreign import AnyCid, AnyValue, ForeignCid
from ..ipld import read_value
from .content import Content
from .negotiate import NODES
from .refusal import refuse

MOST_PATH_BYTES: Final = 1024
"""Of a path as it stands in a URL, CID and all."""
MOST_HOPS: Final = 32
"""Links that one path may follow: each is a block to read and decode. What is published here needs four."""

MOST_WAY_BYTES: Final = 8 << 20
"""Bytes of all nodes on one path: they are decoded one by one, and stand together in a CAR of one block."""

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_NOT_A_LINK: Final = "reading IPLD Kinds other than Links (CBOR Tag 42) is not implemented"


@dataclass(frozen=True)
class Place:
    """A content path and the blocks that it goes through."""

    segments: tuple[str, ...]
    slash: bool
    """Whether the path ends with a slash: it means the same, and stays in what names the place."""
    cids: tuple[AnyCid, ...]
    """From the CID in the path to the block that it leads to, one for each link."""

    @property
    def cid(self) -> AnyCid:
        """The block that is asked for."""
        return self.cids[-1]

    @property
    def text(self) -> str:
        """What stands after `/ipfs/`, decoded."""
        return "/".join((str(self.cids[0]), *self.segments)) + "/" * self.slash

    @property
    def url_path(self) -> str:
        """The path as it stands in a URL, in the one form that `Ipfs-Uri` has."""
        return "/".join((str(_version_1(self.cids[0])), *(quote(name, safe="") for name in self.segments))) + (
            "/" * self.slash
        )


def split_path(raw_path: bytes) -> tuple[str, tuple[str, ...], bool]:
    """Take the path of a URL apart: CID, segments, and whether it ends with a slash.

    Percent signs are decoded once, and a slash that was written so separates as any other; then `.` and `..` are
    resolved. Raises `HTTPException` 400.
    """
    if len(raw_path) > MOST_PATH_BYTES:
        raise refuse(400, f"path of more than {MOST_PATH_BYTES} bytes")
    try:
        names = unquote_to_bytes(raw_path).decode().removeprefix("/ipfs/").split("/")
    except UnicodeDecodeError as error:
        raise refuse(400, "path that is not UTF-8") from error
    segments: list[str] = []
    for name in names[1:]:
        if name == "..":
            if not segments:
                raise refuse(400, "path that leads out of its CID")
            segments.pop()
        elif name not in ("", "."):
            segments.append(name)
    return names[0], tuple(segments), len(names) > 1 and names[-1] in ("", ".", "..")


def resolve(content: Content, root: AnyCid, segments: tuple[str, ...], *, slash: bool) -> Place:
    """Follow a path through blocks that may be shown. The block at its end is not looked for.

    Raises `BlockNotFound` where one on the way is absent, `Corrupt` where one is damaged, and `HTTPException`: 404
    where a node has no such entry, 501 where the path ends at a value inside a node, or goes through a block that has
    no entries to go through.
    """
    cids = [root]
    left = list(reversed(segments))
    way_bytes = 0
    while left:
        data = _node(content, cids[-1])
        way_bytes += len(data)
        if way_bytes > MOST_WAY_BYTES:
            raise refuse(400, f"path through more than {MOST_WAY_BYTES} bytes of nodes")
        value = read_node(cids[-1], data)
        while left and isinstance(value, dict | list):
            value = _entry(value, left.pop(), "/".join(segments))
        if not isinstance(value, AnyCid):
            if left:
                raise _no_entry(left[-1], "/".join(segments))
            raise refuse(501, f"{_NOT_A_LINK}: the path ends at a value inside of {cids[-1]}")
        if len(cids) > MOST_HOPS:
            raise refuse(400, f"path along more than {MOST_HOPS} links")
        cids.append(value)
    return Place(segments, slash, tuple(cids))


def read_node(cid: AnyCid, data: bytes) -> AnyValue:
    """Read a node. Raises `HTTPException` 501 for one of a form that is not read here, although it may be sound."""
    if isinstance(cid, Cid):  # mostly of the kind that CyberKV writes, which is read faster
        with suppress(Corrupt):
            return cast("AnyValue", own_value(data))
    try:
        return read_value(cid, data)
    except Corrupt as error:  # the bytes are what the CID says: nothing is damaged
        raise refuse(501, f"{cid} is not read here: {error}") from error


def _node(content: Content, cid: AnyCid) -> bytes:
    size_bytes = content.size_bytes(cid)
    if size_bytes is None:
        raise BlockNotFound(f"{cid} is not published", cid=str(cid))
    if cid.codec == "raw":
        raise refuse(404, f"{cid} is a raw block: nothing lies below it")
    if cid.codec not in NODES:
        raise refuse(501, f"no paths lead through {cid.codec} blocks here")
    return content.get(cid)


def _entry(value: dict[str, AnyValue] | list[AnyValue], name: str, path: str) -> AnyValue:
    if isinstance(value, dict):
        if name in value:
            return value[name]
    elif _INDEX.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    raise _no_entry(name, path)


def _no_entry(name: str, path: str) -> Exception:
    return refuse(404, f"no entry {name!r:.80} on the path {path!r:.400}")


def _version_1(cid: AnyCid) -> AnyCid:
    """Give the form that can stand in a URI, where letters have no case."""
    return ForeignCid(b"\x01\x70" + cid) if isinstance(cid, ForeignCid) and cid.version == 0 else cid
