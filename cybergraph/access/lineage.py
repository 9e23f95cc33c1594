"""What somebody who gives access keeps about it: the content key of the epoch, who has it, and what was published.

This never leaves the machine. A grant names no reader; who they are is known here alone.
"""

import hashlib
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

from ..cid import Cid
from ..errors import BadReference, CyberKVError, LimitExceeded
from ..limits import MAX_EPOCH, MAX_TITLE_BYTES, MAX_WRAPS
from ..nodes.base import Nested, Node, Record
from ..nodes.kinds import Bytes, CidBytes, Listing, Maybe, Text, Uint, wrong
from .contentkey import KEY_BYTES, LINEAGE_BYTES, ContentKey, framed
from .grant import Kem, check_reader
from .identity import MAX_TEXT_CHARS, PublicIdentity

LABEL_BYTES: Final = 128
MAX_PINS: Final = 256
MAX_EARLIER: Final = 64
"""Addresses remembered of what was published before; the oldest fall out."""


class PublicKey(Text):
    """The text of somebody's public keys."""

    def encode(self, value: str) -> bytes:
        """Check and encode; see `Kind`."""
        data = super().encode(value)
        try:
            PublicIdentity.parse(value)
        except CyberKVError as error:
            raise wrong("a public key", value) from error
        return data


class Moment(Text):
    """A time, RFC 3339 in UTC."""

    def encode(self, value: str) -> bytes:
        """Check and encode; see `Kind`."""
        data = super().encode(value)
        try:
            is_utc = datetime.fromisoformat(value).utcoffset() == timedelta()
        except ValueError:
            is_utc = False
        if not is_utc:
            raise wrong("a time in UTC", value)
        return data


@dataclass(frozen=True, slots=True)
class Reader(Record):
    """Somebody who has access."""

    label: Annotated[str, Text(LABEL_BYTES)]
    key: Annotated[str, PublicKey(MAX_TEXT_CHARS)]

    def identity(self) -> PublicIdentity:
        """Give the public keys."""
        return PublicIdentity.parse(self.key)

    def is_called(self, who: str) -> bool:
        """Say whether this is a label, fingerprint or key of theirs."""
        return who in (self.label, self.key) or who == self.identity().fingerprint


@dataclass(frozen=True, slots=True)
class Publication(Record):
    """What was published last, here or as a file: enough to give access to it again without a block of it."""

    source: Annotated[Cid, CidBytes()]
    """The conversation that was sealed, by its name at home."""
    epoch: Annotated[int, Uint(MAX_EPOCH, least=1)]
    root: Annotated[Cid, CidBytes()]
    """The sealed root."""
    grant: Annotated[Cid, CidBytes()]
    ring: Annotated[Cid | None, Maybe(CidBytes())]
    manifest: Annotated[Cid, CidBytes("raw")]
    pinset: Annotated[Cid, CidBytes()]
    audience: Annotated[bytes, Bytes(32)]
    """Whom the grant was made for: `Lineage.audience`."""
    blocks: Annotated[int, Uint(least=1)]
    """How many are sealed: leaves, pages and pin sets, without what a grant adds."""
    size_bytes: Annotated[int, Uint(least=1)]
    """Of these blocks."""
    car_bytes: Annotated[int, Uint(least=1)]
    """What they take in a CAR file."""


@dataclass(frozen=True, slots=True)
class Pin(Record):
    """What a Kubo node may have pinned."""

    node: Annotated[str, Text(512)]
    """Address of its RPC, without what opens it."""
    name: Annotated[str, Text(512)]
    root: Annotated[Cid, CidBytes()]
    epoch: Annotated[int, Uint(MAX_EPOCH, least=1)]


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
    started: Annotated[str, Moment(32)]
    """When the epoch began."""
    alg: Annotated[int, Uint(255, least=1)]
    kem: Annotated[Kem, Text(choices=("x25519", "mlkem768-x25519"))]
    readers: Annotated[tuple[Reader, ...], Listing(Nested(Reader), MAX_WRAPS)]
    removed: Annotated[Reader | None, Maybe(Nested(Reader))] = None
    """Whose removal began the epoch: whoever was stopped meanwhile goes on with it."""
    last: Annotated[Publication | None, Maybe(Nested(Publication))] = None
    """What was published last, perhaps in an epoch before."""
    earlier: Annotated[tuple[Cid, ...], Listing(CidBytes(), MAX_EARLIER)] = ()
    """Sealed roots before that one, the newest first."""
    pins: Annotated[tuple[Pin, ...], Listing(Nested(Pin), 2 * MAX_PINS)] = ()

    TYPE: ClassVar = "cyberkv/given"

    @classmethod
    def begin(cls, name: str, issuer: bytes, started: str, *, alg: int, kem: Kem) -> "Lineage":
        """Begin with a fresh key, epoch 1 and no readers."""
        lineage, key = secrets.token_bytes(LINEAGE_BYTES), ContentKey.new().reveal()
        return cls(name, lineage, issuer, 1, key, started, alg, kem, ())

    @property
    def content_key(self) -> ContentKey:
        """The content key of the epoch."""
        return ContentKey(self.key)

    @property
    def commitment(self) -> bytes:
        """What the grants of the epoch commit to."""
        return self.content_key.commitment(self.issuer, self.lineage, self.epoch)

    @property
    def is_published(self) -> bool:
        """Whether the epoch was published; what was published last may be of one before."""
        return self.last is not None and self.last.epoch == self.epoch

    @property
    def roots(self) -> tuple[Cid, ...]:
        """The sealed roots that were published, the newest first, as far as they are remembered."""
        return self.earlier if self.last is None else (self.last.root, *self.earlier)

    def audience(self, *, ring: bool) -> bytes:
        """Give 32 bytes that are the same for the same readers, however they are called here."""
        keys = sorted(reader.key.encode() for reader in self.readers)
        return hashlib.sha256(framed(self.kem.encode(), bytes((ring,)), *keys)).digest()

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
        removed = self.removed
        if removed is not None and removed.identity().sealing == public.sealing:
            removed = None
        return replace(self, readers=(*others, Reader(label, str(public))), removed=removed)

    def without_reader(self, who: str, started: str) -> "Lineage":
        """Remove a reader, named by label, fingerprint or key, and begin an epoch.

        The reader whose removal began the epoch is gone already: then it goes on. Raises `BadReference`.
        """
        named = [each for each in self.readers if each.is_called(who)]
        if not named and self.removed is not None and self.removed.is_called(who):
            return self
        if len(named) != 1:
            raise BadReference(
                f"{len(named) or 'no'} readers of {self.name} are called {who!r:.80}",
                hint="`cyberkv grant list` has the label and fingerprint of each",
                readers=[each.label for each in self.readers],
            )  # fmt: skip
        left = tuple(each for each in self.readers if each != named[0])
        return replace(self.rotated(started), readers=left, removed=named[0])

    def rotated(self, started: str, above: int = 0) -> "Lineage":
        """Begin an epoch above this one and `above`, with a fresh key and the same readers."""
        epoch = max(self.epoch, above) + 1
        return replace(self, epoch=epoch, key=ContentKey.new().reveal(), started=started, removed=None)

    def published(self, last: Publication) -> "Lineage":
        """Note what was published last."""
        earlier = tuple(root for root in self.roots if root != last.root)[:MAX_EARLIER]
        return replace(self, last=last, earlier=earlier)

    def with_pin(self, node: str, name: str, root: Cid, most: int = MAX_PINS) -> "Lineage":
        """Note what a node is about to pin of the epoch. Raises `LimitExceeded` for more than `most` pins."""
        pins = tuple({**dict.fromkeys(self.pins), Pin(node, name, root, self.epoch): None})
        if len(pins) > most:
            raise LimitExceeded(
                f"{self.name} is pinned {most} times on nodes already",
                hint="`cyberkv grant rotate --reencrypt` seals it again, and unpins what was pinned before",
                pins=most,
            )  # fmt: skip
        return replace(self, pins=pins)

    def without_pins(self, gone: tuple[Pin, ...]) -> "Lineage":
        """Forget pins that are no more."""
        return replace(self, pins=tuple(pin for pin in self.pins if pin not in gone))

    def __repr__(self) -> str:
        return f"Lineage({self.name!r}, epoch {self.epoch}, {len(self.readers)} readers)"
