"""What an edit did, what it cost, and whether the result is exact.

Exact means: bit-equal to a run that never saw what is gone, in keys, values and scores. Only `fast` is not.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from ...cybergraph.nodes.base import Node
from ...cybergraph.nodes.kinds import Bool, Listing, Maybe, Text, Uint

Mode = Literal["exact", "rollback", "branch", "fast"]
MODES: Final[tuple[Mode, ...]] = ("exact", "rollback", "branch", "fast")

SURVIVES: Final = (
    "approximate: the rows of the span are gone, its influence survives in the deeper layers of what came after it"
)
"""What every place that shows a fast eviction says."""
STILL_FOUND: Final = "still found, because "
"""Begins what a receipt says of another name whose conversation holds the span: there, prompts go on finding it."""
MAX_ELSEWHERE: Final = 64
MAX_COPY_BYTES: Final = 512


class Cut(NamedTuple):
    """Tokens from `start` up to and without `end`, which are to go."""

    start: int
    end: int

    def moved(self, at: int) -> int:
        """Say where a position stands when the cut is gone."""
        return at if at <= self.start else max(self.start, at - (self.end - self.start))

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"


@dataclass(frozen=True, slots=True)
class EditReceipt(Node):
    """What an edit of a conversation did. It stays in the home."""

    mode: Annotated[Mode, Text(choices=MODES)]
    exact: Annotated[bool, Bool()]
    """Whether the result is that of a run that never saw what is gone."""
    recomputed_tokens: Annotated[int, Uint()]
    """Tokens that went through the model for it; what the index knew was loaded."""
    dropped_tokens: Annotated[int, Uint()]
    dropped_blocks: Annotated[int, Uint()]
    """Full blocks of the conversation before that are none of the conversation after."""
    invalidated: Annotated[int, Uint()]
    """Index entries taken out: of blocks that held a token of the span, and of all that continue those, those that the
    head of no other name holds."""
    elsewhere: Annotated[tuple[str, ...], Listing(Text(MAX_COPY_BYTES), MAX_ELSEWHERE)]
    """Copies of the span that this edit does not reach, as far as this home knows."""
    domain: Annotated[str | None, Maybe(Text(128))]
    """Numeric domain of what was computed; null where nothing was."""

    TYPE: ClassVar = "cyberkv/edit"

    @property
    def note(self) -> str:
        """Say in words what the result is."""
        words = "exact: bit for bit what a run gives that never saw the span"
        if self.mode == "fast":
            words = SURVIVES
        elif not self.exact:
            words = "approximate, as the conversation was before"
        held = any(each.startswith(STILL_FOUND) for each in self.elsewhere)
        return f"{words}; prompts still find the span where other names hold it" if held else words

    def as_json(self) -> dict[str, Any]:
        """Give the receipt ready for JSON."""
        names = (
            "mode", "exact", "recomputed_tokens", "dropped_tokens", "dropped_blocks", "invalidated", "elsewhere",
            "domain", "note",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}
