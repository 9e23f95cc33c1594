"""The page of a sealed conversation: what everybody may know of it, and how its readers get it."""

from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...access.grant import check_grant_of
from ...cid import Cid
from ...errors import AccessDenied
from ...nodes import Grant, PinSet, Sealed
from .place import Place
from .reader import CANNOT_READ, Reader, why
from .render import page
from .sources import Sources

MOST_COUNTED: Final = 4096
"""Leaves, pages and pin sets whose sizes are added up for one page."""


class Ciphertext(NamedTuple):
    """Sealed leaves and pages."""

    pieces: int
    bytes: int
    whole: bool
    """Nothing was left out for being absent or too much to count."""


def sealed_page(sources: Sources, request: Request, cid: Cid, sealed: Sealed, place: Place) -> Response:
    """Show a sealed conversation. Its ciphertext may be kept back from whoever does not prove access."""
    grant, trouble = _grant(sources.reader, sealed)
    return page(
        request, "sealed.html", cid=cid, place=place, sealed=sealed, grant=grant, trouble=trouble,
        ciphertext=_ciphertext(sources.reader, sealed.pinset),
    )  # fmt: skip


def _grant(reader: Reader, sealed: Sealed) -> tuple[Grant | None, str]:
    """Read the grant and check that it was signed for this conversation; else say why there is none."""
    try:
        grant = reader.node(Grant, sealed.grant)
        check_grant_of(sealed, grant)
    except CANNOT_READ as error:
        return None, why(error)
    except AccessDenied as error:
        return None, error.message
    return grant, ""


def _ciphertext(reader: Reader, pinset: Cid) -> Ciphertext | None:
    """Add up what the pin sets list, the ones that these name among them; None where the first may not be shown."""
    if not reader.here(pinset):
        return None
    ahead, seen, sizes, whole = [pinset], {pinset}, list[int](), True
    while ahead:
        try:
            listed = reader.node(PinSet, ahead.pop()).links
        except CANNOT_READ:
            whole = False
            continue
        for cid in listed:
            if cid in seen:
                continue
            if len(seen) > MOST_COUNTED:
                return Ciphertext(len(sizes), sum(sizes), whole=False)
            seen.add(cid)
            if cid.codec == "dag-cbor":
                ahead.append(cid)
            elif (size_bytes := reader.size_bytes(cid)) is not None:
                sizes.append(size_bytes)
            else:
                whole = False
    return Ciphertext(len(sizes), sum(sizes), whole)
