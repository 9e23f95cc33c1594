"""Headers that say what an answer is called: for caches, for readers of paths and for whoever saves it."""

from typing import Final
from urllib.parse import quote

from starlette.datastructures import QueryParams

from .negotiate import Form
from .resolve import Place

MOST_NAME_CHARS: Final = 200

_ENDINGS: Final[dict[Form, str]] = {
    "raw": "bin", "car": "car", "dag-cbor": "cbor", "dag-json": "json", "cbor": "cbor", "json": "json", "file": "bin",
}  # fmt: skip
_INLINE: Final = frozenset[Form]({"dag-json", "json", "file"})
"""Forms that a browser may show, where it can; it is told not to run them."""
_UNSAFE: Final = str.maketrans(dict.fromkeys('"\\/:*?<>|%', "_"))


def name_headers(place: Place) -> dict[str, str]:
    """Give the headers that name a place and the blocks on the way to it."""
    headers = {"Ipfs-Uri": f"ipfs://{place.url_path}", "X-Ipfs-Roots": ",".join(map(str, place.cids))}
    path = f"/ipfs/{place.text}"
    if path.isascii() and path.isprintable() and path == path.strip():  # other letters have no place in a header
        headers["X-Ipfs-Path"] = path
    return headers


def disposition(query: QueryParams, cid: str, form: Form) -> str:
    """Say whether a browser should save the answer, and under which name."""
    name = _safe(query.get("filename", "")) or f"{cid}.{_ENDINGS[form]}"
    how = "inline" if form in _INLINE and query.get("download") != "true" else "attachment"
    plain = "".join(char if char.isascii() else "_" for char in name)
    extended = "" if name.isascii() else f"; filename*=UTF-8''{quote(name, safe='')}"
    return f'{how}; filename="{plain}"{extended}'


def _safe(name: str) -> str:
    """Make a name without what would end the header, leave the folder or hide its ending."""
    shown = "".join(char if char.isprintable() else "_" for char in name[:MOST_NAME_CHARS])
    return shown.translate(_UNSAFE).strip(" .")
