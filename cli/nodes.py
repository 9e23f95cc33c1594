"""Nodes as plain values: links as text, and an outline for a terminal."""

from itertools import groupby
from typing import Any

from ..cybergraph.cid import CID_BYTES, CID_PREFIXES, Buffer, Cid
from ..cybergraph.dagcbor import decode
from ..cybergraph.nodes import TYPES, decode_node
from .output import say


def read_node(data: Buffer) -> Any:
    """Decode a dag-cbor block to maps and lists, with CIDs as text and other bytes in hex.

    Raises `MalformedNode` for a block that claims a type of this project and is not valid.
    """
    node = _readable(decode(data))
    if not isinstance(node, dict) or node.get("type") not in TYPES:
        return node
    decode_node(data)
    kinds = TYPES[node["type"]].KINDS
    return {name: node[name] for name in ("type", "version", *kinds)}


def _readable(value: Any) -> Any:
    match value:
        case dict():
            return {key: _readable(item) for key, item in value.items()}
        case list():
            return [_readable(item) for item in value]
        case bytes():
            is_cid = len(value) == CID_BYTES and value.startswith(CID_PREFIXES)
            return str(Cid(value)) if is_cid else value.hex()
    return value


def outline(value: Any, depth: int = 0) -> None:
    """Print maps and lists indented; the numbers of a list share a line, everything else has its own."""
    indent = "  " * depth
    pairs = value.items() if isinstance(value, dict) else [("", item) for item in _grouped(value)]
    for key, item in pairs:
        if isinstance(item, dict | list) and not _fits_line(item):
            say(f"{indent}{key or '-'}", dim=True)
            outline(item, depth + 1)
        else:
            say(f"{indent}{key}{': ' if key else ''}{_words(item)}")


def _grouped(items: list[Any]) -> list[Any]:
    """Count equal texts in a row instead of repeating them."""
    if not all(isinstance(item, str) for item in items):
        return items
    runs = ((item, len(list(run))) for item, run in groupby(items))
    return [f"{item} (x{count})" if count > 1 else item for item, count in runs]


def _fits_line(value: Any) -> bool:
    return not value or (isinstance(value, list) and all(type(item) is int for item in value))


def _words(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            # In brackets, so that one token id does not read as a count.
            return f"[{', '.join(map(str, value))}]" if value else "none"
    return str(value) if value not in (None, {}) else "none"
