"""What somebody who gives access keeps about it: the content key of the epoch, who has it, and what was published.

This never leaves the machine. A grant names no reader; who they are is known here alone.
"""

import secrets
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

from ..cid import Cid
from ..errors import BadReference
from ..limits import MAX_EPOCH, MAX_TITLE_BYTES, MAX_WRAPS
from ..nodes.base import Nested, Node, Record
from ..nodes.kinds import Bytes, CidBytes, Listing, Maybe, Text, Uint
from .contentkey import KEY_BYTES, LINEAGE_BYTES, ContentKey
from .grant import Kem, check_reader
from .identity import MAX_TEXT_CHARS, PublicIdentity

LABEL_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Reader(Record):
    """Somebody who has access."""

    label: Annotated[str, Text(LABEL_BYTES)]
    key: Annotated[str, Text(MAX_TEXT_CHARS)]

    def identity(self) -> PublicIdentity:
        """Give the public keys."""
        return PublicIdentity.parse(self.key)


@dataclass(frozen=True, slots=True)
class Lineage(Node):
    """One conversation through all its epochs."""

    name: Annotated[str, Text(MAX_TITLE_BYTES)]
    """The conversation's name, or its root's CID."""
    lineage: Annotated[bytes, Bytes(LINEAGE_BYTES)]
    issuer: Annotated[bytes, Bytes(32)]
    """Ed25519 key that signs its grants."""
    epoch: Annotated[int, Uint(MAX_EPOCH, least=1)]
    key: Annotated[bytes, Bytes(KEY_BYTES)]
    """Content key of the epoch."""
    started: Annotated[str, Text(32)]
    """When the epoch began, RFC 3339 in UTC."""
    alg: Annotated[int, Uint(255, least=1)]
    kem: Annotated[Kem, Text(choices=("x25519", "mlkem768-x25519"))]
    readers: Annotated[tuple[Reader, ...], Listing(Nested(Reader), MAX_WRAPS)]
    sealed: Annotated[Cid | None, Maybe(CidBytes())]
    """The sealed root that was published last, perhaps in an epoch before."""
    grant: Annotated[Cid | None, Maybe(CidBytes())]
    """Its grant."""

    TYPE: ClassVar = "cyberkv/lineage"

    @classmethod
    def begin(cls, name: str, issuer: bytes, started: str, *, alg: int, kem: Kem) -> "Lineage":
        """Begin with a fresh key, epoch 1 and no readers."""
        lineage, key = secrets.token_bytes(LINEAGE_BYTES), ContentKey.new().reveal()
        return cls(name, lineage, issuer, 1, key, started, alg, kem, (), None, None)

    @property
    def content_key(self) -> ContentKey:
        """The content key of the epoch."""
        return ContentKey(self.key)

    @property
    def commitment(self) -> bytes:
        """What the grants of the epoch commit to."""
        return self.content_key.commitment(self.issuer, self.lineage, self.epoch)

    def check_issuer(self, public: PublicIdentity) -> None:
        """Check that a key may sign grants: readers know a lineage by who signs. Raises `BadReference`."""
        if public.signing != self.issuer:
            raise BadReference(
                f"access to {self.name} was given with another key than {public.fingerprint}",
                hint="name that one with --key", name=self.name,
            )  # fmt: skip

    def with_reader(self, label: str, public: PublicIdentity) -> "Lineage":
        """Add a reader; one who is there already gets the new label. The epoch stays.

        Raises `BadReference`, and `BadKey` for somebody for whom no key can be wrapped: on the list, they would be in
        the way of every later grant.
        """
        check_reader(public, self.kem)
        if len(label.encode()) > LABEL_BYTES:
            raise BadReference(
                f"a label of {len(label.encode())} bytes, limit {LABEL_BYTES}", hint="choose a shorter one"
            )
        others = tuple(each for each in self.readers if each.identity().sealing != public.sealing)
        return replace(self, readers=(*others, Reader(label, str(public))))

    def without_reader(self, who: str, started: str) -> "Lineage":
        """Remove a reader, named by label, fingerprint or key, and begin an epoch. Raises `BadReference`."""
        named = [each for each in self.readers if who in (each.label, each.key, each.identity().fingerprint)]
        if len(named) != 1:
            raise BadReference(
                f"{len(named)} readers of {self.name} are called {who!r:.80}", hint="`cyberkv grant list` has them all",
                readers=[each.label for each in self.readers],
            )  # fmt: skip
        return replace(self, readers=tuple(each for each in self.readers if each != named[0])).rotated(started)

    def rotated(self, started: str) -> "Lineage":
        """Begin an epoch with a fresh key and the same readers."""
        return replace(self, epoch=self.epoch + 1, key=ContentKey.new().reveal(), started=started)

    def __repr__(self) -> str:
        return f"Lineage({self.name!r}, epoch {self.epoch}, {len(self.readers)} readers)"
