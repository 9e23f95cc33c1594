"""The page of a receipt: who signed which conversation, and what they claim of it."""

from starlette.requests import Request
from starlette.responses import Response

from ...access.receipt import check_receipt
from ...cid import Cid
from ...errors import AccessDenied, Corrupt
from ...nodes import Receipt
from .place import Place
from .render import page
from .sources import Sources


def receipt_page(sources: Sources, request: Request, cid: Cid, receipt: Receipt, place: Place) -> Response:
    """Show a receipt, and whether its signature holds."""
    reason, root = "", sources.reader.conversation(receipt.root)
    try:
        check_receipt(receipt, root)
    except (Corrupt, AccessDenied) as error:
        reason = error.message
    prev = None if receipt.prev is None else sources.reader.receipt(receipt.prev)
    return page(request, "receipt.html", cid=cid, place=place, receipt=receipt, root=root, reason=reason, prev=prev)
