"""The first page: what there is."""

from itertools import islice
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...foreign import AnyCid
from ...nodes import Conversation
from .reader import Reader
from .render import page
from .sources import Sources, asked

ROWS: Final = 40


class Row(NamedTuple):
    """One root."""

    cid: AnyCid
    root: Conversation | None
    """None for anything but a conversation."""
    sealed: bool
    """A conversation that only its readers can read."""
    codec: str
    size_bytes: int | None
    signed: bool


def home_page(sources: Sources, request: Request) -> Response:
    """List the roots that may be shown, the newest first."""
    shown = sources.folded()
    start = asked(request, "from", len(shown) - 1) // ROWS * ROWS
    rows = [_row(sources.reader, cid, signed=signed) for cid, signed in islice(shown.items(), start, start + ROWS)]
    return page(request, "home.html", rows=rows, start=start, total=len(shown), each=ROWS)


def _row(reader: Reader, cid: AnyCid, *, signed: bool) -> Row:
    root = reader.conversation(cid)
    sealed = root is None and reader.sealed(cid) is not None
    return Row(cid, root, sealed, cid.codec, reader.size_bytes(cid), signed)
