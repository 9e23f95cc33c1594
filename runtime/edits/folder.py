"""What a home keeps about edits: named spans, receipts, and what gates said. Private files, which never leave it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeVar

from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt, LimitExceeded
from ...cybergraph.limits import MAX_NODE_BYTES
from ...cybergraph.nodes.base import Nested, Node
from ...cybergraph.nodes.kinds import CidBytes, Maybe, Text
from ...cybergraph.private import changing, make_private_folder, open_regular, write_private
from .gates import Verdict, Verdicts, digest_of
from .receipt import EditReceipt
from .spans import NO_SPANS, Ledger, SpanBook

_SPANS, _VERDICTS, _RECEIPTS = "spans", "verdicts", "receipts"
_NO_VERDICTS: Final = Verdicts(())
File = TypeVar("File", bound=Node)


@dataclass(frozen=True, slots=True)
class Edit(Node):
    """One edit as it is kept."""

    old: Annotated[Cid | None, Maybe(CidBytes())]
    """The root before, that of the branch where one was dropped; null where it was let go."""
    new: Annotated[Cid, CidBytes()]
    created: Annotated[str, Text(32)]
    """RFC 3339 time in UTC."""
    receipt: Annotated[EditReceipt, Nested(EditReceipt)]

    TYPE: ClassVar = "cyberkv/kept-edit"


class EditsFolder:
    """Small private files, each written whole. Of several processes, one at a time changes something."""

    def __init__(self, path: Path) -> None:
        """Use `path`, which is made when something is to be kept."""
        self._path = path

    def ledger(self, tokens: Sequence[int]) -> Ledger:
        """Give the spans of a conversation. Raises `Corrupt`."""
        return _read(self._path / _SPANS, NO_SPANS).ledger(tokens)

    def change_spans(self, change: Callable[[SpanBook], SpanBook]) -> None:
        """Replace the spans by what `change` makes of them. Raises `Corrupt`, `LimitExceeded`."""
        with changing(self._path):
            before = _read(self._path / _SPANS, NO_SPANS)
            if (after := change(before)) != before:
                self._write(_SPANS, after)

    def keep_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Keep what gates said. Raises `Corrupt`."""
        with changing(self._path):
            self._write(_VERDICTS, _read(self._path / _VERDICTS, _NO_VERDICTS).adding(verdicts))

    def verdicts(self) -> Verdicts:
        """Give what gates said. Raises `Corrupt`."""
        return _read(self._path / _VERDICTS, _NO_VERDICTS)

    def _write(self, name: str, node: Node) -> None:
        data = node.encode()
        if len(data) > MAX_NODE_BYTES:  # else nobody could read it again
            raise LimitExceeded(
                f"the {name} of this home take {len(data)} bytes, limit {MAX_NODE_BYTES}",
                hint="choose shorter names; `evict --forget` lets old ones go",
            )
        write_private(self._path / name, [data], sync=True)

    def keep(self, edit: Edit) -> None:
        """Keep a receipt under the roots before and after."""
        folder = self._path / _RECEIPTS
        with changing(self._path):
            make_private_folder(folder)
            path = folder / f"{edit.new}-{edit.old}"
            if edit.old is None:  # several forgotten branches of one root
                names = (folder / f"{edit.new}-forgotten-{number}" for number in count())
                path = next(name for name in names if not name.exists())
            write_private(path, [edit.encode()], sync=True)

    def edits(self, *roots: Cid) -> Iterator[Edit]:
        """Give the edits that led to any of the roots. Raises `Corrupt`."""
        for root in roots:
            for path in sorted((self._path / _RECEIPTS).glob(f"{root}-*")):
                with open_regular(path) as file:
                    yield _decode(Edit, path, file.read(MAX_NODE_BYTES + 1))

    def forget(self, roots: Iterable[Cid], contents: Iterable[Sequence[int]] = ()) -> None:
        """Let go what names the roots, and what gates said of the contents. Raises `Corrupt`."""
        digests = {digest_of(tokens) for tokens in contents}
        with changing(self._path):
            verdicts = self.verdicts().verdicts
            kept = tuple(each for each in verdicts if each.digest not in digests)
            if kept != verdicts:
                self._write(_VERDICTS, Verdicts(kept))
        for root in roots:
            for pattern in (f"*-{root}", f"{root}-*"):
                for path in (self._path / _RECEIPTS).glob(pattern):
                    path.unlink(missing_ok=True)


def _read(path: Path, absent: File) -> File:
    try:
        with open_regular(path) as file:
            return _decode(type(absent), path, file.read(MAX_NODE_BYTES + 1))
    except FileNotFoundError:
        return absent


def _decode(kind: type[File], path: Path, data: bytes) -> File:
    try:
        return kind.decode(data)
    except Corrupt as error:
        raise Corrupt(
            f"what this home keeps about edits is damaged: {path.name}: {error}",
            hint=f"move {path} away to begin anew", path=str(path),
        ) from error  # fmt: skip
