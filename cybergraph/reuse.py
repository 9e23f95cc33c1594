"""What sharing is worth in one home: every root of every name counted as if it stood alone, against what there is.

A root that shares its first blocks with others is one request whose beginning was not computed again. Where it had them
from is read from the home itself, and the first of these that holds names the source of a block:

    chat           the root before it in the log of the same name has the block
    tree           the root it was forked from has it
    agents         another conversation has it that was at work at the same time, a minute more or less
    few-shot       another conversation has it, after the end of a first turn
    system prompt  another conversation has it

A block names the one before it, so what two chains share is a beginning of both, and the longest is found by halving.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import takewhile
from typing import Final

from .ceilings import fan_out, resent
from .cid import Cid
from .errors import Corrupt, NotFound
from .index import Head
from .nodes import Block, Conversation
from .store.base import Store
from .survey import Survey

SOURCES: Final = ("system prompt", "few-shot", "chat", "tree", "agents")
AT_ONCE: Final = timedelta(seconds=60)
"""Conversations whose turns lie no further apart were at work at the same time."""


@dataclass(slots=True)
class Shares:
    """Shares of one kind of reuse. They are never multiplied with those of another."""

    conversations: int = 0
    asked_tokens: int = 0
    found_tokens: int = 0
    """In whole blocks."""
    common_tokens: int = 0
    """What was there before, token for token; more than was found by what does not fill a block."""
    ceiling_tokens: Fraction = Fraction(0)
    """What could be found of turns, or agents, of equal length."""

    @property
    def found(self) -> Fraction:
        """Share of the tokens that whole blocks held."""
        return Fraction(self.found_tokens, self.asked_tokens or 1)

    @property
    def block_size_loss(self) -> Fraction:
        """Share of the tokens that were there before and did not fill a block."""
        return Fraction(self.common_tokens - self.found_tokens, self.asked_tokens or 1)

    @property
    def ceiling(self) -> Fraction:
        """Share that could be found."""
        return self.ceiling_tokens / (self.asked_tokens or 1)


@dataclass(slots=True)
class Census:
    """Blocks and bytes with and without sharing."""

    roots: int = 0
    blocks_without: int = 0
    bytes_without: int = 0
    blocks_with: int = 0
    bytes_with: int = 0
    """Payload of the distinct blocks."""
    shared_blocks: Counter[str] = field(default_factory=Counter)
    """Blocks that were there already, by source."""
    shared_bytes: Counter[str] = field(default_factory=Counter)
    single: Shares = field(default_factory=Shares)
    """Each conversation against its own earlier roots."""
    fleet: Shares = field(default_factory=Shares)
    """Each conversation against all others, in what its own earlier roots did not have."""


@dataclass(frozen=True, slots=True)
class _Root:
    name: str
    when: datetime | None
    node: Conversation
    blocks: list[Cid]


def take_census(
    logs: Iterable[Sequence[Head]], survey: Survey, store: Store,
    *, block_bytes: Callable[[Cid], int], turn_ends: Callable[[Cid], frozenset[int]],
) -> Census:  # fmt: skip
    """Count the roots of some logs, in the order in which they were recorded.

    `block_bytes` gives the payload of a block of a model, `turn_ends` the tokens that end a turn, or none where they
    are not known. Roots that cannot be read are left out. Reads nodes, no leaves.
    """
    counting = _Counting(survey, store, block_bytes, turn_ends)
    for root in _in_order(logs, survey):
        counting.add(root)
    counting.close()
    return counting.census


def _in_order(logs: Iterable[Sequence[Head]], survey: Survey) -> Iterator[_Root]:
    """Sort by time, of one second what was forked last; within a log its own order holds, whatever its clock did."""
    rows: list[tuple[str, bool, Head, Conversation]] = []
    for log in logs:
        latest, forked = "", False
        for head in log:
            node = survey.conversations.get(head.root)
            if node is not None and all(segment in survey.segments for segment in node.segments):
                latest, forked = max(latest, head.created), forked or node.parent is not None
                rows.append((latest, forked, head, node))
    for _, _, head, node in sorted(rows, key=lambda row: row[:2]):
        yield _Root(head.name, _time(head.created), node, list(survey.blocks_of(node)))


def _time(created: str) -> datetime | None:
    try:
        return datetime.fromisoformat(created)
    except ValueError:
        return None


class _Counting:
    def __init__(
        self, survey: Survey, store: Store, block_bytes: Callable[[Cid], int],
        turn_ends: Callable[[Cid], frozenset[int]],
    ) -> None:  # fmt: skip
        self.census = Census()
        self._survey = survey
        self._store = store
        self._block_bytes = block_bytes
        self._turn_ends = turn_ends
        self._holder: dict[Cid, str] = {}
        """Block -> the last conversation that came to hold it."""
        self._at_work: dict[str, datetime | None] = {}
        self._last: dict[str, _Root] = {}
        self._tokens: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()

    def add(self, root: _Root) -> None:
        census, blocks = self.census, root.blocks
        before = self._last.get(root.name)
        own = 0 if before is None else _common(blocks, before.blocks)
        parent = self._survey.conversations.get(root.node.parent) if root.node.parent else None
        forked = 0 if parent is None else _common(blocks, list(self._survey.blocks_of(parent)))
        known = bisect_left(blocks, 1, key=lambda block: int(block not in self._holder))
        sources = Counter({"chat": own, "tree": max(0, min(forked, known) - own)})
        sources.update(self._elsewhere(root, max(own, min(forked, known)), known))
        each_bytes = self._block_bytes(root.node.model)
        census.roots += 1
        census.blocks_without += len(blocks)
        census.bytes_without += len(blocks) * each_bytes
        census.blocks_with += len(blocks) - known
        census.bytes_with += (len(blocks) - known) * each_bytes
        for source, count in sources.items():
            census.shared_blocks[source] += count
            census.shared_bytes[source] += count * each_bytes
        self._note_shares(root, before, own, known)
        for block in blocks[own:]:
            self._holder[block] = root.name
        self._at_work[root.name], self._last[root.name] = root.when, root

    def _elsewhere(self, root: _Root, first: int, last: int) -> Iterator[str]:
        """Name the source of blocks that other conversations hold."""
        turn = self._first_turn(root.node, root.blocks[:last]) if first < last else 0
        for at in range(first, last):
            other = self._at_work.get(self._holder.get(root.blocks[at], root.name))
            if root.when and other and abs(root.when - other) <= AT_ONCE:
                yield "agents"
            else:
                yield "few-shot" if at >= turn else "system prompt"

    def _first_turn(self, node: Conversation, blocks: Sequence[Cid]) -> int:
        """Give the number of blocks up to the end of the first turn."""
        ends = self._turn_ends(node.model)
        before = takewhile(lambda cid: ends.isdisjoint(_tokens(self._store, cid)), blocks) if ends else blocks
        return sum(1 for _ in before) + 1

    def _note_shares(self, root: _Root, before: _Root | None, own: int, known: int) -> None:
        census, size = self.census, root.node.block_size
        self._turns[root.name] += 1
        self._tokens[root.name] += root.node.length
        census.single.asked_tokens += root.node.length
        census.single.found_tokens += own * size
        census.single.common_tokens += 0 if before is None else own * size + self._partial(root, before, own)
        census.fleet.asked_tokens += (len(root.blocks) - own) * size
        census.fleet.found_tokens += (known - own) * size
        census.fleet.common_tokens += (known - own) * size

    def _partial(self, root: _Root, before: _Root, own: int) -> int:
        """Count the equal tokens after the common blocks."""
        if root.node.model != before.node.model:
            return 0
        pairs = zip(self._window(root, own), self._window(before, own), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _window(self, root: _Root, at: int) -> tuple[int, ...]:
        return _tokens(self._store, root.blocks[at]) if at < len(root.blocks) else root.node.tail.tokens

    def close(self) -> None:
        """Work out the ceilings."""
        census, names = self.census, len(self._turns)
        census.single.conversations = census.fleet.conversations = names
        census.single.ceiling_tokens = sum(
            (resent(turns) * self._tokens[name] for name, turns in self._turns.items()), Fraction(0)
        )
        census.fleet.ceiling_tokens = fan_out(names) * census.fleet.asked_tokens if names else Fraction(0)


def _common(a: Sequence[Cid], b: Sequence[Cid]) -> int:
    """Count the leading blocks that two chains share."""
    return bisect_left(range(min(len(a), len(b))), 1, key=lambda i: int(a[i] != b[i]))


def _tokens(store: Store, block: Cid) -> tuple[int, ...]:
    try:
        return Block.decode(store.get(block)).tokens
    except (NotFound, Corrupt):
        return ()
