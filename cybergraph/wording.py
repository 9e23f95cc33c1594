"""Words fit for people: foreign text made harmless, numbers made readable."""

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, marks that turn the direction of text, lone surrogates; not tab and newline."""
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def plain(text: str) -> str:
    r"""Replace what could steer a terminal or disguise text, in place: the length stays.

    >>> plain("\x1b[31mred\x07")
    '␛[31mred␇'
    """
    return _UNSAFE.sub(lambda found: _picture(ord(found[0])), text)


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def preview(text: str, most_chars: int) -> str:
    r"""Give the beginning of a text as one harmless line.

    >>> preview("one\n  two three", 9)
    'one two …'
    """
    line = " ".join(plain(text[: 4 * most_chars]).split())
    return line if len(line) <= most_chars else line[: most_chars - 1] + "…"


def size(size_bytes: int) -> str:
    """Say a size in binary units.

    >>> size(16_777_216_000), size(46_080), size(12)
    ('15.6 GiB', '45.0 KiB', '12 B')
    """
    if size_bytes < 1024:
        return f"{size_bytes} B"
    amount = float(size_bytes)
    for unit in _UNITS:
        amount /= 1024
        if amount < 1000 or unit == _UNITS[-1]:
            break
    return f"{amount:,.1f} {unit}"


def count(number: int, thing: str) -> str:
    """Say how many there are.

    >>> count(1, "block"), count(0, "leaf"), count(2048, "leaf"), count(2, "registered model")
    ('1 block', '0 leaves', '2,048 leaves', '2 registered models')
    """
    plural = f"{thing[:-1]}ves" if thing.endswith("f") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Say a time in a fitting unit.

    >>> duration(0.0042), duration(3.25), duration(4000)
    ('4.2 ms', '3.25 s', '1.1 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
