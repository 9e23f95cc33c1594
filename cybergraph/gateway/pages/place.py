"""Where a page stands: the path in its address, and what the parts of that path mean.

>>> place = Place("bafy/segments/3/links/17/to")
>>> [crumb.words for crumb in place.crumbs]
['Root', 'Segment 3', 'Block 785']
>>> place.below("kv", 0), place.block
('/ipfs/bafy/segments/3/links/17/to/kv/0', 785)
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import quote

from ...limits import MAX_SEGMENT_LINKS
from ...wording import preview

_LINK: Final = re.compile(r"links/([0-9]{1,3})/to(?=/|$)")
_STEPS: Final = (
    (re.compile(r"segments/([0-9]{1,5})(?=/|$)"), "Segment {}"),
    (_LINK, "Link {}"),
    (re.compile(r"preload/([0-9]{1,4})(?=/|$)"), "Conversation {}"),
    (re.compile(r"model(?=/|$)"), "Model"),
    (re.compile(r"parent(?=/|$)"), "Parent"),
    (re.compile(r"([^/]*)"), "{}"),
)
_BLOCK: Final = re.compile(r"[^/]+/segments/([0-9]{1,5})(?:/links/([0-9]{1,3})/to)?(?=/|$)")
MOST_CRUMBS: Final = 24


class Crumb(NamedTuple):
    """One step of the way from the root to here."""

    words: str
    url: str


@dataclass(frozen=True)
class Place:
    """One path: what stands behind `/ipfs/` in the address, without escapes."""

    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.rstrip("/"))

    @cached_property
    def url(self) -> str:
        """The address of this page on this server."""
        return "/ipfs/" + quote(self.path, safe="/")

    @cached_property
    def root(self) -> str:
        """The CID that the path begins with, as text."""
        return self.path.partition("/")[0]

    def below(self, *steps: str | int) -> str:
        """Give the address of something that this page's node holds or links to."""
        return "/".join((self.url, *(quote(str(step), safe="") for step in steps)))

    @cached_property
    def crumbs(self) -> list[Crumb]:
        """The way from the root to here; empty at a root."""
        root, _, rest = self.path.partition("/")
        found, at = [Crumb("Root", "/ipfs/" + quote(root))], 0
        while at < len(rest) and len(found) < MOST_CRUMBS:
            step, words = next((hit, words) for rule, words in _STEPS if (hit := rule.match(rest, at)))
            name = words.format(*step.groups())
            if step.re is _LINK and self.segment is not None and len(found) == 2:
                name = f"Block {self.segment * MAX_SEGMENT_LINKS + int(step[1])}"
            found.append(Crumb(preview(name, 40), f"{found[0].url}/{quote(rest[: step.end()], safe='/')}"))
            at = step.end() + 1
        return found if rest else []

    @cached_property
    def segment(self) -> int | None:
        """Index of the segment that the path leads to or through."""
        found = _BLOCK.match(self.path)
        return int(found[1]) if found else None

    @cached_property
    def block(self) -> int | None:
        """Index of the block that the path leads to, within its conversation."""
        found = _BLOCK.fullmatch(self.path)
        return int(found[1]) * MAX_SEGMENT_LINKS + int(found[2]) if found and found[2] else None


def block_url(root: object, index: int) -> str:
    """Give the address of a block by its index within a conversation."""
    return f"/ipfs/{root}/segments/{index // MAX_SEGMENT_LINKS}/links/{index % MAX_SEGMENT_LINKS}/to"
