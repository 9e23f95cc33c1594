"""Share links: `cyberkv://<root>#v1.<key>.<check>`. Whoever has the link can read, and nobody can take it back.

The secret stands in the fragment, which is sent to no server. With a password, `v1p`, the fragment holds the key under
it instead; the password goes another way.
"""

import base64
from dataclasses import dataclass
from typing import Final, Self

from ..cid import TEXT_CHARS, Cid
from ..errors import AuthFailed, BadKey, BadReference, Corrupt
from .contentkey import KEY_BYTES, ContentKey
from .passphrase import Lock, lock, unlock

SCHEME: Final = "cyberkv://"
CHECK_BYTES: Final = 16
MAX_LINK_CHARS: Final = 1024
_OPEN, _LOCKED = "v1", "v1p"
_PURPOSE: Final = "share link"


@dataclass(frozen=True)
class ShareLink:
    """A sealed root and what opens it: the content key, or a lock around it."""

    root: Cid
    secret: ContentKey | Lock
    check: bytes
    """The first half of the commitment: it tells a wrong key at once."""

    @classmethod
    def make(cls, root: Cid, key: ContentKey, commitment: bytes, password: str | None = None) -> Self:
        """Build a link; with `password` nobody reads who does not know it."""
        return cls(root, key if password is None else lock(key.reveal(), password, _PURPOSE), commitment[:CHECK_BYTES])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a link. Raises `BadReference`, whose message never repeats the secret."""
        address, _, fragment = text.partition("#")
        cid = address.removeprefix(SCHEME).removesuffix("/")
        if len(text) > MAX_LINK_CHARS or not text.startswith(SCHEME) or len(cid) != TEXT_CHARS or "?" in address:
            raise _unusable("a link is cyberkv://CID#v1.… with its secret after the #, nowhere else")
        version, *parts = fragment.split(".")
        try:
            root = Cid.parse(cid)
            data = [_from_text(part) for part in parts]
            if version == _OPEN and [len(each) for each in data] == [KEY_BYTES, CHECK_BYTES]:
                return cls(root, ContentKey(data[0]), data[1])
            if version == _LOCKED and len(data) == 2 and len(data[1]) == CHECK_BYTES:
                return cls(root, Lock.decode(data[0]), data[1])
        except (ValueError, Corrupt):
            pass
        raise _unusable("what stands after the # is cut short or was changed" if fragment else "its secret is missing")

    @property
    def is_locked(self) -> bool:
        """Whether a password is needed."""
        return isinstance(self.secret, Lock)

    def open(self, password: str | None) -> ContentKey:
        """Give the content key. Raises `BadKey` for a missing or wrong password."""
        if isinstance(self.secret, ContentKey):
            return self.secret
        if password is None:
            raise BadKey("this link has a password", hint="it is asked for on a terminal, or give --password-file")
        return ContentKey(unlock(self.secret, password, _PURPOSE))

    def confirm(self, commitment: bytes) -> None:
        """Check that the link is about a sealed root with this commitment. Raises `AuthFailed`."""
        if commitment[:CHECK_BYTES] != self.check:
            raise AuthFailed("this link belongs to another version of the conversation", cid=str(self.root))

    def __str__(self) -> str:
        if isinstance(self.secret, ContentKey):
            version, data = _OPEN, self.secret.reveal()
        else:
            version, data = _LOCKED, self.secret.encode()
        return f"{SCHEME}{self.root}#{version}.{_to_text(data)}.{_to_text(self.check)}"

    def __repr__(self) -> str:
        return f"ShareLink({self.root}, ...)"


def _unusable(reason: str) -> BadReference:
    return BadReference(f"not a share link: {reason}", hint="copy it again, whole, from where it was sent")


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _from_text(text: str) -> bytes:
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _to_text(data) != text:
        raise ValueError
    return data
