"""Byte ranges of answers whose length is known.

>>> part_of("bytes=2-3", 10), part_of("bytes=-3", 10), part_of("bytes=8-", 10), part_of("bytes=20-", 10)
(slice(2, 4, None), slice(7, 10, None), slice(8, 10, None), None)
>>> part_of("bytes=x", 10)
slice(0, 10, None)
"""

import re
from typing import Final

_UNIT: Final = re.compile(r"bytes\s*=\s*(.*)", re.IGNORECASE)
_RANGE: Final = re.compile(r"([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
MOST_RANGES: Final = 64


def part_of(header: str, size_bytes: int) -> slice | None:
    """Give the part that a Range header asks for: all where it says nothing that is understood, None if outside.

    Of several ranges the first that has any bytes is given, and no other: a reader has to look which it got.
    """
    whole = slice(0, size_bytes)
    unit = _UNIT.fullmatch(header.strip())
    if unit is None or size_bytes == 0:
        return whole
    texts = unit[1].split(",")
    found = [_RANGE.fullmatch(text.strip()) for text in texts]
    if len(texts) > MOST_RANGES:
        return whole
    parts: list[slice] = []
    for each in found:
        if each is None or not (each[1] or each[2]):
            return whole
        part = _part(each[1], each[2], size_bytes)
        if part is None:
            return whole
        parts.append(part)
    return next((part for part in parts if part.start < part.stop), None)


def _part(first: str, last: str, size_bytes: int) -> slice | None:
    """Give one range, empty if it is outside; None if it makes no sense."""
    if not first:
        return slice(size_bytes - min(int(last), size_bytes), size_bytes)
    if last and int(last) < int(first):
        return None
    return slice(int(first), min(int(last) + 1, size_bytes) if last else size_bytes)
