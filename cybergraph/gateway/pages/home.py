"""The first page: what there is."""

from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...foreign import AnyCid
from ...nodes import Conversation
from .render import page
from .sources import Sources, asked

ROWS: Final = 40


class Row(NamedTuple):
    """One root."""

    cid: AnyCid
    root: Conversation | None
    """None for anything but a conversation."""
    codec: str
    size_bytes: int | None
    signed: bool


def home_page(sources: Sources, request: Request) -> Response:
    """List the roots that may be shown, the newest first."""
    roots = sources.reader.content.roots()
    start = asked(request, "from", len(roots) - 1) // ROWS * ROWS
    listed = roots[start : start + ROWS]
    unsigned = {cid: sources.unsigned(cid) for cid in listed}
    signed = {root for cid, root in unsigned.items() if root != cid}
    shown = dict.fromkeys(root for cid, root in unsigned.items() if root == cid or root in listed or root not in roots)
    rows = [
        Row(cid, sources.reader.conversation(cid), cid.codec, sources.reader.size_bytes(cid), cid in signed)
        for cid in shown
    ]
    return page(request, "home.html", rows=rows, start=start, total=len(roots), each=ROWS)
