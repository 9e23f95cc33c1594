"""The documents of a home: which text each conversation was recorded from, so that either is found from the other.

One private JSON file for each document, and beside it the vectors of its passages, which can be made again. The text
itself is a raw block of the store, named by its hash: K and V that were lost are computed again from it.
"""

import json
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...cybergraph.cid import Cid
from ...cybergraph.errors import (
    BadReference,
    BlockNotFound,
    Corrupt,
    CyberKVError,
    LimitExceeded,
    NameNotFound,
    OutOfRange,
    UnsupportedFormat,
)
from ...cybergraph.limits import MAX_LEAF_BYTES
from ...cybergraph.private import make_private_folder, open_regular, sync_folder, write_private
from ...cybergraph.refs import LEAST_PREFIX_CHARS
from ...cybergraph.store.base import Store

MAX_TEXT_BYTES: Final = MAX_LEAF_BYTES
"""A text is one raw block."""
MAX_DOCUMENTS: Final = 4096
"""Of one home: all of them are looked through for each question."""
_MAX_TOKENS: Final = 4 * MAX_TEXT_BYTES
_MAX_RECORD_BYTES: Final = 1 << 14
_MAX_VECTOR_BYTES: Final = 64 << 20
_VERSION: Final = 1

Vectors = NDArray[np.float32]
"""Unit vectors, one a row. Shape: [passages, dimensions]."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text and the conversation that was recorded from it."""

    name: str
    root: Cid
    text: Cid
    """The text as a raw block, UTF-8."""
    model: Cid
    block_size: int
    tokens: int
    created: str


class Library:
    """The documents of one home. Effects: writes only below `folder` and into `store`."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder = folder
        self._store = store

    @staticmethod
    def check_text(text: str) -> bytes:
        """Give a text as it is stored. Raises `OutOfRange` for an empty one, `LimitExceeded`, `Corrupt`."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise Corrupt(f"not Unicode text: character {error.start}", field="text") from error
        if not text.strip():
            raise OutOfRange("an empty document has nothing to find", hint="give a text with words in it")
        if len(data) > MAX_TEXT_BYTES:
            raise LimitExceeded(
                f"a document of {len(data):,} bytes, the limit is {MAX_TEXT_BYTES:,}",
                hint="cut it into several", size_bytes=len(data), limit_bytes=MAX_TEXT_BYTES,
            )  # fmt: skip
        return data

    def keep_text(self, text: str) -> Cid:
        """Store a text and give its CID. Raises as `check_text`, `TierFull`."""
        data = self.check_text(text)
        cid = Cid.of(data, "raw", "blake3")
        self._store.put_many([(cid, data)], hashed=True)
        return cid

    def keep(self, document: Document) -> None:
        """Note a document, in place of what was noted of the same conversation. Raises `LimitExceeded`."""
        path = self._path(document.root)
        if not path.exists() and len(self._paths()) >= MAX_DOCUMENTS:
            raise LimitExceeded(
                f"{MAX_DOCUMENTS:,} documents are the most of one home", hint="`cyberkv document remove NAME`"
            )
        make_private_folder(self._folder)
        content = {"version": _VERSION, **asdict(document)}
        write_private(path, [json.dumps(content, default=str, ensure_ascii=False, indent=2).encode()], sync=True)

    def documents(self, damaged: Callable[[CyberKVError], None] | None = None) -> list[Document]:
        """List them by name.

        A record that cannot be read is given to `damaged`; without that it raises `Corrupt` or `UnsupportedFormat`,
        naming the file.
        """
        found = []
        for path in self._paths():
            try:
                found.append(_read(path))
            except CyberKVError as error:
                if damaged is None:
                    raise
                damaged(error)
        return sorted(found, key=lambda each: (each.name, each.root))

    def find(self, ref: str) -> Document:
        """Give the document with this name, or the CID of its conversation or text, or the beginning of that.

        Damaged records are none. Raises `NameNotFound`, `BadReference` where several fit.
        """
        documents = self.documents(lambda _: None)
        found = [each for each in documents if each.name == ref] or [
            each
            for each in documents
            if len(ref) >= LEAST_PREFIX_CHARS and any(str(cid).startswith(ref) for cid in (each.root, each.text))
        ]
        if not found:
            raise NameNotFound(f"no document {ref!r:.80}", hint="see `cyberkv document list`", ref=ref[:80])
        if len(found) > 1:
            roots = [str(each.root) for each in found]
            raise BadReference(f"{ref!r:.80} fits {len(found)} documents", hint="give the CID", candidates=roots)
        return found[0]

    def text(self, document: Document) -> str:
        """Read the text of a document. Raises `BlockNotFound`, `DigestMismatch`."""
        try:
            return self._store.get(document.text).decode()
        except BlockNotFound as error:
            raise BlockNotFound(
                f"the text of {document.name} is not here: {document.text}",
                hint="add the document again", cid=str(document.text),
            ) from error  # fmt: skip

    def remove(self, document: Document) -> None:
        """Forget that a conversation is a document, and the vectors of its passages."""
        for path in [self._path(document.root), *self._folder.glob(f"{document.root}.*.vectors")]:
            path.unlink(missing_ok=True)
        sync_folder(self._folder)

    def vectors(self, document: Document, encoder: str, *, passages: int, dimensions: int) -> Vectors | None:
        """Read the vectors of a document's passages; None where they have to be made (again)."""
        expected = passages * dimensions * 4
        try:
            with open_regular(self._vector_path(document, encoder)) as file:
                data = file.read(expected + 1)
        except OSError:
            return None
        if len(data) != expected:
            return None
        vectors = np.frombuffer(data, dtype="<f4").reshape(passages, dimensions)
        norms = np.linalg.norm(vectors, axis=1)
        return vectors if np.allclose(norms, 1.0, atol=1e-3) else None

    def keep_vectors(self, document: Document, encoder: str, vectors: Vectors) -> None:
        """Keep the vectors of a document's passages. A set that is too large is made anew each time."""
        if vectors.nbytes <= _MAX_VECTOR_BYTES:
            data = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
            write_private(self._vector_path(document, encoder), [data], sync=False)

    def _path(self, root: Cid) -> Path:
        return self._folder / f"{root}.json"

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"))[: MAX_DOCUMENTS + 1]

    def _vector_path(self, document: Document, encoder: str) -> Path:
        return self._folder / f"{document.root}.{encoder}.vectors"


def normalised(vectors: Items[Items[float]] | NDArray[Any]) -> Vectors:
    """Scale vectors to length 1; one of length 0, which has no direction, becomes the first unit vector."""
    made = np.array(vectors, dtype=np.float32)
    made[~made.any(axis=1), 0] = 1.0
    norms: Vectors = np.linalg.norm(made, axis=1, keepdims=True).astype(np.float32)
    return np.divide(made, norms, dtype=np.float32)


def _read(path: Path) -> Document:
    try:
        with open_regular(path) as file:
            content: Any = json.loads(file.read(_MAX_RECORD_BYTES))
        version = content["version"]
        if version == _VERSION:
            cids = {key: Cid.parse(content[key]) for key in ("root", "text", "model")}
            name, created = str(content["name"]), str(content["created"])
            block_size, tokens = int(content["block_size"]), int(content["tokens"])
            if f"{cids['root']}.json" != path.name or not 0 < tokens <= _MAX_TOKENS or block_size < 1:
                raise Corrupt("its fields do not fit together")
            return Document(name, block_size=block_size, tokens=tokens, created=created, **cids)
    except (CyberKVError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(
            f"{path} is not a record of a document: {error}",
            hint="delete it and add the document again with `cyberkv document add`", path=str(path),
        ) from error  # fmt: skip
    raise UnsupportedFormat(
        f"{path} is a record of version {version!s:.20}, this program reads version {_VERSION}",
        hint="a newer cyberkv may read it", path=str(path),
    )  # fmt: skip
