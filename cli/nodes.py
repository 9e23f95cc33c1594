"""Nodes as plain values: links as text, and an outline for a terminal."""

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
    if isinstance(node, dict) and node.get("type") in TYPES:
        decode_node(data)
    return node


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
    """Print maps and lists indented; numbers share a line, everything else has its own."""
    indent = "  " * depth
    pairs = value.items() if isinstance(value, dict) else [("", item) for item in value]
    for key, item in pairs:
        if isinstance(item, dict | list) and not _fits_line(item):
            say(f"{indent}{key or '-'}", dim=True)
            outline(item, depth + 1)
        else:
            say(f"{indent}{key}{': ' if key else ''}{_words(item)}")


def _fits_line(value: Any) -> bool:
    return not value or (isinstance(value, list) and all(type(item) is int for item in value))


def _words(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return " ".join(map(str, value)) or "none"
    return str(value) if value not in (None, {}) else "none"
