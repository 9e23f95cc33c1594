"""The page of any other node: what it holds, with links to follow, within bounds."""

from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...cid import Cid
from ...foreign import AnyCid, AnyValue, ForeignCid
from ...wording import plain
from .place import Place
from .render import page
from .sources import Sources

MOST_ITEMS: Final = 400
MOST_DEPTH: Final = 8
TEXT_CHARS: Final = 400
KEY_CHARS: Final = 60
BYTES_SHOWN: Final = 32
NUMBERS_SHOWN: Final = 64
_MOST_URL_CHARS: Final = 900


@dataclass
class Item:
    """One value to show."""

    key: str
    kind: str
    """`link`, `text`, `bytes`, `map`, `list` or `plain`."""
    text: str = ""
    url: str = ""
    below: list["Item"] = field(default_factory=list)
    more: int = 0
    """Values below that are left out."""


def generic_page(
    sources: Sources, request: Request, cid: AnyCid, value: AnyValue, place: Place, *, reason: str = ""
) -> Response:
    """Show a node of any shape; `reason` says why it is not shown as what it claims to be."""
    budget = [MOST_ITEMS]
    item = _item("", value, (), place, budget)
    kind = value.get("type") if isinstance(value, dict) else None
    size_bytes = sources.reader.size_bytes(cid)
    return page(
        request, "node.html", cid=cid, place=place, item=item, reason=reason, size_bytes=size_bytes,
        codec=cid.codec, kind=kind if isinstance(kind, str) else "",
    )  # fmt: skip


def _item(key: str, value: AnyValue, steps: tuple[str | int, ...], place: Place, budget: list[int]) -> Item:
    """Describe a value and what it holds, depth first, until the budget is spent."""
    budget[0] -= 1
    shown = _cut(key, KEY_CHARS)
    match value:
        case Cid() | ForeignCid():  # bytes, too
            return Item(shown, "link", str(value), _address(value, steps, place))
        case bytes():
            rest = "\u2026" if len(value) > BYTES_SHOWN else ""
            return Item(shown, "bytes", f"{value[:BYTES_SHOWN].hex()}{rest} ({len(value):,} bytes)")
        case str():
            return Item(shown, "text", _cut(value, TEXT_CHARS))
        case list() if value and all(type(each) is int for each in value):
            rest = f", \u2026 {len(value) - NUMBERS_SHOWN:,} more" if len(value) > NUMBERS_SHOWN else ""
            return Item(shown, "plain", f"[{', '.join(map(str, value[:NUMBERS_SHOWN]))}{rest}]")
        case dict() | list():
            return _container(shown, value, steps, place, budget)
        case None | bool():
            return Item(shown, "plain", {None: "null", True: "true", False: "false"}[value])
    return Item(shown, "plain", str(value))


def _container(
    shown: str,
    value: dict[str, AnyValue] | list[AnyValue],
    steps: tuple[str | int, ...],
    place: Place,
    budget: list[int],
) -> Item:
    is_map = isinstance(value, dict)
    found = Item(shown, "map" if is_map else "list", f"{len(value):,}")
    if len(steps) < MOST_DEPTH:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if budget[0] <= 0:
                break
            found.below.append(_item(str(key), each, (*steps, key), place, budget))
    found.more = len(value) - len(found.below)
    return found


def _address(cid: AnyCid, steps: tuple[str | int, ...], place: Place) -> str:
    """Give the address of what a link names: by path, so that the way back shows, where a browser leaves it alone."""
    if any(step in ("", ".", "..") or "/" in str(step) for step in steps):
        return f"/ipfs/{cid}"
    url = place.below(*steps)
    return url if len(url) <= _MOST_URL_CHARS else f"/ipfs/{cid}"


def _cut(text: str, most_chars: int) -> str:
    shown = plain(text[: most_chars + 1])
    return shown if len(shown) <= most_chars else shown[:most_chars] + "\u2026"
