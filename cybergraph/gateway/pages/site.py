"""All pages of one server."""

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...errors import Corrupt, Refused
from ...foreign import AnyCid, AnyValue
from ...nodes import Block, Conversation, Model, Receipt, Sealed, Segment
from ..content import Content
from .block import block_page
from .conversation import conversation_page
from .difference import diff_page
from .generic import generic_page
from .heat import Heats
from .home import home_page
from .lookups import Lookups
from .model import model_page
from .place import Place
from .reader import Reader, as_node
from .receipt import receipt_page
from .render import compile_templates, page, style
from .sealed import sealed_page
from .segment import segment_page
from .sources import Sources
from .words import Words

_WORDS: Final = {
    404: "This is not here",
    412: "This is not here",
    429: "Too many requests",
    500: "This is damaged here",
    503: "Too busy right now",
}


class Pages:
    """Pages over what a content may show, and over nothing else. Methods may be called from several threads."""

    def __init__(self, content: Content, lookups: Lookups | None = None) -> None:
        compile_templates()
        lookups = lookups or Lookups()
        reader = Reader(content)
        self._sources = Sources(reader, Words(lookups.text), Heats(reader, lookups.norms))

    def routes(self) -> list[BaseRoute]:
        """List the addresses besides `/ipfs`."""
        return [Route("/", self.home), Route("/diff", self.diff), Route("/style.css", style)]

    def home(self, request: Request) -> Response:
        """Show what there is."""
        return home_page(self._sources, request)

    def diff(self, request: Request) -> Response:
        """Compare two conversations."""
        return diff_page(self._sources, request)

    def node(self, request: Request, cid: AnyCid, node: AnyValue, path: str) -> Response:
        """Show the node that the block `cid` holds; `path` is what stands after `/ipfs/` in the address, decoded."""
        place = Place(path)
        try:
            known = as_node(cid, node)
        except (Corrupt, Refused) as error:
            return generic_page(self._sources, request, cid, node, place, reason=error.message)
        match known:
            case Conversation():
                return conversation_page(self._sources, request, known.cid(), known, place)
            case Segment():
                return segment_page(self._sources, request, known.cid(), known, place)
            case Block():
                return block_page(self._sources, request, known.cid(), known, place)
            case Receipt():
                return receipt_page(self._sources, request, known.cid(), known, place)
            case Sealed():
                return sealed_page(self._sources, request, known.cid(), known, place)
            case Model():
                return model_page(self._sources, request, known.cid(), known, place)
        return generic_page(self._sources, request, cid, node, place)

    def error(self, request: Request, status: int, reason: str) -> Response:
        """Say why there is nothing to show."""
        words = _WORDS.get(status) or HTTPStatus(status).phrase
        return page(request, "error.html", status=status, words=words, reason=reason.removeprefix(f"{status}: "))
