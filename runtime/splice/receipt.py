"""What a splice did, and how exact the result is."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ...cybergraph.cid import Cid
from ...cybergraph.verdict import Verdict
from .measure import SpliceError


class Mode(StrEnum):
    """How documents were placed."""

    PREFIX = "prefix"
    """They begin the text: an ordinary append. Exact; blocks of the first one are found where they are recorded."""
    RECOMPUTE = "recompute"
    """Elsewhere, everything from the first document on was computed. Exact."""
    RECONCILE = "reconcile"
    """Their rows were fitted in, and only some tokens computed again. Approximate, and labelled so for ever."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a span of one, to be placed."""

    root: Cid
    """The conversation it was recorded as."""
    start: int
    """Its first token in the document."""
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a piece stands in the result."""

    root: Cid
    document_start: int
    document_end: int
    position_start: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Account of one splice."""

    mode: Mode
    at: int
    """Position of the first document token."""
    documents: tuple[Placed, ...]
    recomputed_tokens: int
    """Tokens of the result that went through the whole model."""
    reused_tokens: int
    """Tokens whose K and V were loaded."""
    domain: str
    """Numeric domain."""
    share: float | None = None
    """Of the document tokens, how much was asked to be computed again; None where all of it is exact."""
    probe: float | None = None
    """Relative error of K and V in the second layer, over the document tokens; None where all of it is exact."""
    error: SpliceError | None = None
    """Measured against computing everything, where that was asked for."""

    @property
    def exact(self) -> bool:
        """Whether the result is what computing all of it would have given, bit for bit."""
        return self.mode is not Mode.RECONCILE

    @property
    def verdict(self) -> Verdict:
        """`HIT` only where recorded blocks were used as they are; what is approximate is `RECONCILED`, at any error."""
        if not self.exact:
            return Verdict.RECONCILED
        return Verdict.HIT if self.mode is Mode.PREFIX and self.reused_tokens else Verdict.RECOMPUTE

    @property
    def note(self) -> str:
        """Say in words what was done."""
        if not self.exact:
            return "approximate: recorded rows were fitted in, and a share of them computed again"
        if self.mode is Mode.PREFIX:
            found = "what was recorded of the first is used" if self.reused_tokens else "nothing recorded fitted"
            return f"exact: the documents begin the text; {found}"
        return f"exact: everything from token {self.at:,} on was computed, as after any other text"

    def describe(self) -> dict[str, Any]:
        """Give the receipt as JSON values."""
        return {
            "mode": self.mode.value,
            "note": self.note,
            "verdict": self.verdict.value,
            "exact": self.exact,
            "at": self.at,
            "documents": [
                {
                    "root": str(each.root),
                    "span": [each.document_start, each.document_end],
                    "position_start": each.position_start,
                }
                for each in self.documents
            ],
            "recomputed_tokens": self.recomputed_tokens,
            "reused_tokens": self.reused_tokens,
            "share": self.share,
            "probe": self.probe,
            "error": None if self.error is None else asdict(self.error),
            "domain": self.domain,
        }


def placed(pieces: tuple[Piece, ...], at: int) -> tuple[Placed, ...]:
    """Say where pieces stand that are placed one after the other from position `at` on."""
    spots = []
    for piece in pieces:
        spots.append(Placed(piece.root, piece.start, piece.start + len(piece.tokens), at))
        at += len(piece.tokens)
    return tuple(spots)
