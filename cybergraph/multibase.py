"""Text forms of bytes: base16, base32, base36, base58 and base64, each told by its first letter."""

import base64
from collections.abc import Callable
from typing import Final

_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def read_multibase(text: str) -> bytes:
    """Read text that begins with the letter of its base.

    >>> read_multibase("f6869"), read_multibase("bnbuq")
    (b'hi', b'hi')

    Raises `ValueError`, also for a letter of no base that is known here.
    """
    if text[:1] not in _BASES:
        raise ValueError(f"no base has the letter {text[:1]!r}")
    return _BASES[text[0]](text[1:])


def read_base58(digits: str) -> bytes:
    """Read bitcoin's base58, without a letter before it. Raises `ValueError`."""
    return _number(digits, _BASE58)


def write_base58(data: bytes) -> str:
    """Write bitcoin's base58, without a letter before it, of bytes that do not begin with a zero."""
    value, digits = int.from_bytes(data, "big"), ""
    while value:
        value, digit = divmod(value, len(_BASE58))
        digits = _BASE58[digit] + digits
    return digits


def write_base32(data: bytes) -> str:
    """Write base32 in small letters without padding, behind its letter `b`."""
    return "b" + base64.b32encode(data).decode().rstrip("=").lower()


def _number(digits: str, alphabet: str) -> bytes:
    """Read digits as one large number, whose leading zeros stand for a zero byte each. Raises `ValueError`."""
    value = 0
    for digit in digits:
        value = value * len(alphabet) + alphabet.index(digit)
    zeros = len(digits) - len(digits.lstrip(alphabet[0]))
    return bytes(zeros) + value.to_bytes(-(-value.bit_length() // 8), "big")


def _padded(decode: Callable[[bytes], bytes], quantum: int) -> Callable[[str], bytes]:
    return lambda digits: decode(digits.encode() + b"=" * (-len(digits) % quantum))


def _base64(digits: str) -> bytes:
    return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)


_BASES: Final[dict[str, Callable[[str], bytes]]] = {
    "b": _padded(lambda digits: base64.b32decode(digits.upper()), 8),
    "B": _padded(base64.b32decode, 8),
    "z": read_base58,
    "k": lambda digits: _number(digits, _BASE36),
    "K": lambda digits: _number(digits.lower(), _BASE36),
    "f": lambda digits: base64.b16decode(digits.upper()),
    "F": base64.b16decode,
    "m": _base64,
    "u": lambda digits: _base64(digits.replace("-", "+").replace("_", "/")),
}
