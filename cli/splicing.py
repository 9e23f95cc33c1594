"""What the commands about documents share: the library of a home, and a model that documents can be placed with."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..cybergraph.chain import load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt, NameNotFound, NotFound, OutOfRange
from ..cybergraph.nodes import Conversation
from ..cybergraph.refs import resolve_root
from .context import Session
from .models import choose_model, need_codec, readable_records
from .output import remark
from .progress import busy
from .rates import read_rate
from .trust import require_usable

if TYPE_CHECKING:
    from torch import Tensor

    from ..runtime.models.registry import ModelRecord
    from ..runtime.models.tokenizer import TextCodec
    from ..runtime.splice.documents import Engines
    from ..runtime.splice.library import Document, Library
    from ..runtime.splice.passages import Found
    from ..runtime.splice.receipt import Piece

_SPAN: Final = re.compile(r"(.+):(\d{1,9}):(\d{1,9})")


class Bench(NamedTuple):
    """A loaded model, under every block size that documents need."""

    engines: "Engines"
    codec: "TextCodec"


class Source(NamedTuple):
    """A piece to place, and where its rows come from."""

    piece: "Piece"
    tokens: list[int]
    """All tokens of what it is a piece of."""
    lost: "list[int] | None"
    """All tokens of a document whose conversation is gone: its rows are computed from its text."""
    block_size: int

    @property
    def end(self) -> int:
        """Where the piece ends in it."""
        return self.piece.start + len(self.piece.tokens)

    def rows(self, engines: "Engines") -> "Tensor":
        """Give its raw rows. Shape: [tokens, layers, K|V, kv_heads, head_dim]."""
        start, count = self.piece.start, len(self.piece.tokens)
        if self.lost is not None:
            return engines.compute(self.lost, self.block_size)[start : start + count]
        return engines.rows(self.piece.root, start, count)


def library_of(session: Session) -> "Library":
    """Give the documents of this home."""
    from ..runtime.splice.library import Library

    return Library(session.home / "documents", session.store)


def readable_documents(session: Session) -> "list[Document]":
    """List the documents of this home; a damaged record is a remark."""
    return library_of(session).documents(lambda error: remark(session, f"documents: {error.message}"))


def open_bench(session: Session, record: "ModelRecord") -> Bench:
    """Load a registered model to record documents, or to place them."""
    from ..runtime.engine import build_engine
    from ..runtime.pace import Pace
    from ..runtime.splice.documents import Engines

    with busy(session, f"loading {record.name}"):
        loaded = session.registry.load(record)
        codec = need_codec(loaded.text, record.name)
        engine = build_engine(loaded, session.store, session.index)
        engine.pace = Pace(session.clock_s, read_rate(session.home, record.cid))
    return Bench(Engines(engine), codec)


def model_of(session: Session, root: Conversation) -> "ModelRecord":
    """Choose the registered model that a conversation was made with, in whatever block size.

    Raises as `choose_model`, naming the first axis that differs.
    """
    return _registered_as(session, root.model, root.block_size) or choose_model(session, None, root)


def _registered_as(session: Session, model: Cid, block_size: int) -> "ModelRecord | None":
    from ..runtime.reblock import reblocked

    records = readable_records(session)
    same = (record for record in records if record.cid == model)
    resized = (record for record in records if reblocked(record.identity, block_size).cid() == model)
    return next(same, None) or next(resized, None)


class Named(NamedTuple):
    """What `DOC` or `DOC:START:END` names. No model is needed to find it."""

    root: Cid
    document: "Document | None"
    """None for a conversation."""
    span: tuple[int, int] | None
    """None for all of it."""


def find_source(session: Session, ref: str) -> Named:
    """Find what `DOC` or `DOC:START:END` names: a document, else any conversation. Raises `NameNotFound`."""
    try:
        return _find_source(session, ref, None)
    except NameNotFound:
        spanned = _SPAN.fullmatch(ref)
        if spanned is None:
            raise
        return _find_source(session, spanned[1], (int(spanned[2]), int(spanned[3])))


def _find_source(session: Session, ref: str, span: tuple[int, int] | None) -> Named:
    try:
        document = library_of(session).find(ref)
    except NameNotFound:
        return Named(resolve_root(ref, session.index, session.store), None, span)
    return Named(document.root, document, span)


def source_of(
    session: Session, bench: Bench, root_cid: Cid, document: "Document | None", span: tuple[int, int] | None
) -> Source:
    """Read the tokens of a document, or of a span of it.

    A document whose conversation is gone is read from its text. Raises `OutOfRange` for a span it does not have,
    `IdentityMismatch` where it belongs to another model, `Untrusted`.
    """
    from ..runtime.splice.receipt import Piece

    lost: list[int] | None = None
    try:
        root = load_root(session.store, root_cid)
        bench.engines.fitting(root)
        require_usable(session, root_cid)
        tokens, block_size = tokens_of(session.store, root), root.block_size
    except (NotFound, Corrupt):
        if document is None:
            raise
        bench.engines.require(document.model, document.block_size)
        tokens = lost = bench.codec.encode(library_of(session).text(document), special=False)
        block_size = document.block_size
    start, end = span or (0, len(tokens))
    if not 0 <= start < end <= len(tokens):
        raise OutOfRange(
            f"no span {start}:{end} in a document of {len(tokens)} tokens", hint="DOC:START:END, END not included",
            start=start, end=end, tokens=len(tokens),
        )  # fmt: skip
    return Source(Piece(root_cid, start, tuple(tokens[start:end])), tokens, lost, block_size)


def search(session: Session, query: str, k: int, *, model: Cid | None = None) -> "list[Found]":
    """List the passages nearest to a question, of documents recorded with the registered models.

    With `model`, only documents of that model, whatever their block size, are looked through. Effects: keeps the
    vectors of new documents. Raises `NotFound` where there are no documents, or no sentence model is installed.
    """
    from ..runtime.splice.encoder import open_encoder
    from ..runtime.splice.passages import Retriever

    library = library_of(session)
    documents = []
    for document in readable_documents(session):
        record = _registered_as(session, document.model, document.block_size)
        if record is None or (model is not None and record.cid != model):
            remark(session, f"skipped {document.name}: it was recorded with another model")
        elif not session.store.has(document.text):
            remark(session, f"skipped {document.name}: its text is not here any more")
        else:
            documents.append(document)
    if not documents:
        raise NotFound("no document of this model is recorded here", hint="`cyberkv document add FILE` records one")

    def texts(document: "Document", spans: Sequence[tuple[int, int]]) -> list[str]:
        return read_spans(session, document, spans)

    with busy(session, "searching"):
        return Retriever(library, open_encoder(), texts).search(query, documents, k)


def read_spans(session: Session, document: "Document", spans: Sequence[tuple[int, int]]) -> list[str]:
    """Give the text of some spans of a document's tokens. Raises `NotFound` where its model is not registered."""
    record = _registered_as(session, document.model, document.block_size)
    if record is None:
        raise NotFound(f"the model of {document.name} is not registered here", hint="see `cyberkv model list`")
    codec = need_codec(session.registry.text(record), record.name)
    tokens = codec.encode(library_of(session).text(document), special=False)
    return [codec.decode(tokens[start:end]) for start, end in spans]
