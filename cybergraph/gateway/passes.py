"""Tokens for those who have proven access, kept in memory and for a while."""

import hashlib
import re
import secrets
from collections import OrderedDict
from threading import Lock
from typing import Final

from ..cid import Cid

LIFE_S: Final = 900
"""How long a token is good. A stream that has begun by then goes on to its end."""
MOST_TOKENS: Final = 4096
"""Of more, the oldest are forgotten; their owners prove once more."""
_TOKEN_BYTES: Final = 32
_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9_-]{1,128})", re.IGNORECASE)


class Passes:
    """Tokens, each for one sealed root. Safe to use from several threads."""

    def __init__(self, most: int = MOST_TOKENS) -> None:
        self._most = most
        self._lock = Lock()
        self._good: OrderedDict[bytes, tuple[Cid, int]] = OrderedDict()
        """Hash of a token -> root, second of expiry. By hash, so that a lookup's time says nothing about a token."""

    def __len__(self) -> int:
        return len(self._good)

    def give(self, root: Cid, now_s: int) -> str:
        """Make a token for a root."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with self._lock:
            while self._good and (len(self._good) >= self._most or next(iter(self._good.values()))[1] <= now_s):
                self._good.popitem(last=False)
            self._good[_hash(token)] = root, now_s + LIFE_S
        return token

    def root(self, token: str, now_s: int) -> Cid | None:
        """Give the root that a token is for; None where it was not given here, or is too old."""
        root, expires_s = self._good.get(_hash(token), (None, 0))
        return root if expires_s > now_s else None


def bearer(authorization: str) -> str | None:
    """Read the token in a header; None for other kinds of authorization, which are not for us.

    >>> bearer("Bearer abc"), bearer("Basic YTpi"), bearer("")
    ('abc', None, None)
    """
    found = _BEARER.fullmatch(authorization)
    return found[1] if found else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
