"""The trust folder of a home: whose word counts here, and for what came from elsewhere, who signed it.

Small private files. They are no part of the index: a home that is only read works as it is.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeVar

from ..cid import Cid
from ..errors import Corrupt
from ..limits import MAX_NODE_BYTES
from ..nodes.base import Nested, Node, Record
from ..nodes.kinds import Bool, Bytes, CidBytes, Listing, Text
from ..private import changing, make_private_folder, open_regular, write_private
from .ed25519 import check_public_key
from .lineage import LABEL_BYTES

MAX_SIGNERS: Final = 4096
MAX_WORDS: Final = 64
"""Signers and receipts remembered for one conversation."""
_SIGNERS, _CAME = "signers", "came"

N = TypeVar("N", bound=Node)


@dataclass(frozen=True, slots=True)
class Signer(Record):
    """Somebody who is trusted."""

    key: Annotated[bytes, Bytes(32)]
    """Ed25519."""
    label: Annotated[str, Text(LABEL_BYTES)]


@dataclass(frozen=True, slots=True)
class Signers(Node):
    """Everybody who is trusted, in the order in which they were added."""

    signers: Annotated[tuple[Signer, ...], Listing(Nested(Signer), MAX_SIGNERS)]

    TYPE: ClassVar = "cyberkv/signers"


@dataclass(frozen=True, slots=True)
class Origin(Node):
    """What is known of a conversation that came from elsewhere."""

    root: Annotated[Cid, CidBytes()]
    signers: Annotated[tuple[bytes, ...], Listing(Bytes(32), MAX_WORDS)]
    """Who signed it: producers of receipts, and the issuer of a grant."""
    receipts: Annotated[tuple[Cid, ...], Listing(CidBytes(), MAX_WORDS)]
    accepted: Annotated[bool, Bool()]
    """Whether it may be used although nobody who is trusted signed it: the user said so, or typed a link to it."""

    TYPE: ClassVar = "cyberkv/origin"


class TrustFolder:
    """Reads as of now, each file whole. Of several processes, one at a time changes something."""

    def __init__(self, path: Path) -> None:
        """Use `path`, which is made when something is to be kept."""
        self._path = path

    def signers(self) -> tuple[Signer, ...]:
        """List who is trusted. Raises `Corrupt` for a damaged list."""
        found = _read(self._path / _SIGNERS, Signers)
        return () if found is None else found.signers

    def trusted(self) -> frozenset[bytes]:
        """Give the keys of those who are trusted. Raises as `signers`."""
        return frozenset(signer.key for signer in self.signers())

    def add(self, key: bytes, label: str) -> bool:
        """Trust a key and say whether that is new; one that is trusted gets the new label. Raises `BadKey`."""
        check_public_key(key)
        with changing(self._path):
            before = self.signers()
            others = tuple(each for each in before if each.key != key)
            self._write(_SIGNERS, Signers((*others, Signer(key, label))))
        return len(others) == len(before)

    def remove(self, key: bytes) -> bool:
        """Trust a key no longer, and say whether it was."""
        with changing(self._path):
            before = self.signers()
            rest = tuple(each for each in before if each.key != key)
            self._write(_SIGNERS, Signers(rest))
        return len(rest) < len(before)

    def origin(self, root: Cid) -> Origin | None:
        """Give what is known of a conversation that came from elsewhere; None for another. Raises `Corrupt`."""
        return _read(self._path / _CAME / _file_name(root), Origin)

    def origins(self) -> Iterator[Origin]:
        """List all that came from elsewhere, also what has not come whole. Raises `Corrupt`."""
        for path in sorted((self._path / _CAME).glob("*")):
            if not path.name.startswith(".") and (found := _read(path, Origin)) is not None:
                yield found

    def note(
        self, root: Cid, *, signers: Iterable[bytes] = (), receipts: Iterable[Cid] = (), accepted: bool = False
    ) -> None:
        """Remember of a conversation that it came from elsewhere, and what of it was signed; nothing is forgotten."""
        with changing(self._path):
            known = self.origin(root) or Origin(root, (), (), accepted=False)
            changed = replace(
                known,
                signers=tuple(dict.fromkeys((*signers, *known.signers)))[:MAX_WORDS],
                receipts=tuple(dict.fromkeys((*receipts, *known.receipts)))[:MAX_WORDS],
                accepted=known.accepted or accepted,
            )
            self._write(f"{_CAME}/{_file_name(root)}", changed)

    def _write(self, name: str, node: Node) -> None:
        path = self._path / name
        make_private_folder(path.parent)
        write_private(path, [node.encode()], sync=True)


def _file_name(root: Cid) -> str:
    return hashlib.sha256(root).hexdigest()[:32]


def _read(path: Path, kind: type[N]) -> N | None:
    try:
        with open_regular(path) as file:
            return kind.decode(file.read(MAX_NODE_BYTES + 1))
    except FileNotFoundError:
        return None
    except Corrupt as error:
        raise Corrupt(
            f"{path} is damaged: {error}", hint="move it away; who is trusted has to be said again", path=str(path)
        ) from error
