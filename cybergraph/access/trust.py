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
from ..nodes.kinds import Bool, Bytes, CidBytes, Listing, Text, Uint
from ..private import changing, make_private_folder, open_regular, write_private
from .ed25519 import check_public_key
from .lineage import LABEL_BYTES

MAX_SIGNERS: Final = 4096
MAX_WORDS: Final = 64
"""Signers and receipts remembered for one conversation."""
_SIGNERS, _CAME, _GROUNDS = "signers", "came", "grounds"

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


@dataclass(frozen=True, slots=True)
class Ground(Node):
    """What a conversation that was made here stands on, where its blocks alone do not tell, or not for much longer."""

    root: Annotated[Cid, CidBytes()]
    on: Annotated[Cid, CidBytes()]
    """The conversation that came from elsewhere. It may be gone; what is known of it stays in its `Origin`."""
    tokens: Annotated[int, Uint()]
    """Tokens at the beginning of `root` whose keys and values come from there."""
    rows: Annotated[bool, Bool()]
    """Whether the rows of its tail do, too."""

    TYPE: ClassVar = "cyberkv/ground"


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
        return self._all(_CAME, Origin)

    def grounds(self) -> Iterator[Ground]:
        """List what conversations that were made here stand on. Raises `Corrupt`."""
        return self._all(_GROUNDS, Ground)

    def note(
        self, root: Cid, *, signers: Iterable[bytes] = (), receipts: Iterable[Cid] = (), accepted: bool = False
    ) -> None:
        """Remember of a conversation that it came from elsewhere, and what of it was signed.

        Beyond `MAX_WORDS`, what is left out is the newest of the least: those who are trusted come first, then those
        who signed something else that came here, then whoever else was heard of first. So nobody is pushed out by keys
        made for the purpose. Receipts of those who are trusted come before others.
        """
        with changing(self._path):
            noted = self.origin(root)
            known = noted or Origin(root, (), (), accepted=False)
            named, trusted = list(signers), self.trusted()
            words = tuple(receipts)
            is_trusted = not trusted.isdisjoint(named)
            changed = replace(
                known,
                signers=self._most(root, tuple(dict.fromkeys((*known.signers, *named))), trusted),
                receipts=tuple(dict.fromkeys((*words, *known.receipts) if is_trusted else (*known.receipts, *words)))[
                    :MAX_WORDS
                ],
                accepted=known.accepted or accepted,
            )
            if changed != noted:
                self._write(f"{_CAME}/{_file_name(root)}", changed)

    def unaccept(self, root: Cid) -> bool:
        """Take back that a conversation may be used whoever signed it, and say whether that was so."""
        with changing(self._path):
            known = self.origin(root)
            if known is None or not known.accepted:
                return False
            self._write(f"{_CAME}/{_file_name(root)}", replace(known, accepted=False))
        return True

    def stand(self, ground: Ground) -> None:
        """Remember what a conversation stands on; of the same twice, what reaches further."""
        name = f"{_GROUNDS}/{_file_name(ground.root + ground.on)}"
        with changing(self._path):
            if (known := _read(self._path / name, Ground)) is not None:
                ground = replace(ground, tokens=max(known.tokens, ground.tokens), rows=known.rows or ground.rows)
            if ground != known:
                self._write(name, ground)

    def _most(self, root: Cid, signers: tuple[bytes, ...], trusted: frozenset[bytes]) -> tuple[bytes, ...]:
        if len(signers) <= MAX_WORDS:
            return signers
        elsewhere = {signer for each in self.origins() if each.root != root for signer in each.signers}
        ranked = sorted(signers, key=lambda signer: (signer not in trusted, signer not in elsewhere))  # it is stable
        staying = {*ranked[:MAX_WORDS]}
        return tuple(signer for signer in signers if signer in staying)

    def _all(self, folder: str, kind: type[N]) -> Iterator[N]:
        for path in sorted((self._path / folder).glob("*")):
            if not path.name.startswith(".") and (found := _read(path, kind)) is not None:
                yield found

    def _write(self, name: str, node: Node) -> None:
        path = self._path / name
        make_private_folder(path.parent)
        write_private(path, [node.encode()], sync=True)


def _file_name(name: bytes) -> str:
    return hashlib.sha256(name).hexdigest()[:32]


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
