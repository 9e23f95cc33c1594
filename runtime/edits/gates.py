"""Gates: rules that say of a span whether it stays, by what it says and never by where it stands.

A gate is a plug-in: anything that is called with the tokens, the text and the digest of a span, and gives a `Verdict`
on that digest. The verdict is kept with the digest that it judged, so it says nothing of any other content.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Protocol, Self

from ...cybergraph.errors import BadReference, LimitExceeded
from ...cybergraph.nodes.base import Nested, Node, Record
from ...cybergraph.nodes.kinds import Bool, Bytes, Listing, Text
from ...cybergraph.private import open_regular

MAX_VERDICTS: Final = 1024
MAX_PATTERN_FILE_BYTES: Final = 1 << 20
_REASON_BYTES: Final = 512


def digest_of(tokens: Sequence[int]) -> bytes:
    """Hash what a span says: 32 bytes, the same wherever it stands."""
    return hashlib.sha256(b"cyberkv/span/v1" + array("Q", tokens).tobytes()).digest()


@dataclass(frozen=True, slots=True)
class Verdict(Record):
    """What a gate said of one content."""

    digest: Annotated[bytes, Bytes(32)]
    """Of the tokens it judged."""
    gate: Annotated[str, Text(128)]
    evict: Annotated[bool, Bool()]
    """False: it stays."""
    reason: Annotated[str, Text(_REASON_BYTES)]


class Gate(Protocol):
    """Judges the content of one span."""

    def __call__(self, tokens: Sequence[int], text: str, digest: bytes) -> Verdict:
        """Say whether the span stays; `digest` is `digest_of(tokens)`."""


@dataclass(frozen=True, slots=True)
class PatternGate:
    """Evicts what contains one of some texts, in any case of letters."""

    name: str
    patterns: tuple[str, ...]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a UTF-8 file with a text a line; empty lines and those that begin with `#` say nothing.

        Raises `BadReference`, `LimitExceeded`.
        """
        try:
            with open_regular(path) as file:
                data = file.read(MAX_PATTERN_FILE_BYTES + 1)
            if len(data) > MAX_PATTERN_FILE_BYTES:
                raise LimitExceeded(
                    f"{path!s:.200} has more than {MAX_PATTERN_FILE_BYTES} bytes", hint="shorten the list"
                )
            lines = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise BadReference(f"no list of texts in {path!s:.200}: {error}", hint="give a file with a text a line",
                               path=str(path)[:200]) from error  # fmt: skip
        patterns = tuple(line.casefold() for line in lines if line and not line.startswith("#"))
        if not patterns:
            raise BadReference(f"{path!s:.200} holds no text", hint="give a file with a text a line")
        return cls(f"texts:{hashlib.sha256(data).hexdigest()[:16]}", patterns)

    def __call__(self, tokens: Sequence[int], text: str, digest: bytes) -> Verdict:  # noqa: ARG002
        """Look for each of the texts, and name the one that is found by its number.

        A verdict is kept when the span is gone or locked, and must not say again what that said.
        """
        folded = text.casefold()
        found = next((number for number, pattern in enumerate(self.patterns, 1) if pattern in folded), None)
        reason = "holds none of the texts" if found is None else f"holds text {found} of the list"
        return Verdict(digest, self.name, found is not None, reason)


@dataclass(frozen=True, slots=True)
class Verdicts(Node):
    """What gates said in a home, the newest last."""

    verdicts: Annotated[tuple[Verdict, ...], Listing(Nested(Verdict), MAX_VERDICTS)]

    TYPE: ClassVar = "cyberkv/verdicts"

    def adding(self, new: Iterable[Verdict]) -> "Verdicts":
        """Add verdicts; one on the same content by the same gate makes way, and so do the oldest of too many."""
        added = list(new)
        keys = {(each.digest, each.gate) for each in added}
        kept = [each for each in self.verdicts if (each.digest, each.gate) not in keys]
        return Verdicts(tuple([*kept, *added][-MAX_VERDICTS:]))

    def on(self, tokens: Sequence[int]) -> list[Verdict]:
        """List what was said of this content, by any gate."""
        digest = digest_of(tokens)
        return [each for each in self.verdicts if each.digest == digest]
