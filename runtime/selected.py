"""A conversation that may be longer than its model's positions: its next tokens see the blocks that a policy selects.

Stored K is not rotated, so blocks can be gathered from anywhere in a chain and rotated as if they stood side by side.
What is computed over them belongs to the chain like any other block, under the name of the one before it, but it is not
what attention over everything would have given: it is marked approximate and never indexed.
"""

from collections.abc import Iterator, Sequence
from typing import NoReturn, Self

from ..cybergraph.chain import build_root, load_root, misfit, walk
from ..cybergraph.cid import Cid
from ..cybergraph.errors import MalformedNode, OutOfRange, Refused
from ..cybergraph.nodes import Block, Tail
from .announce import announce
from .checkpoint import require_model
from .engine import Engine
from .live import Counts, Live, Progress
from .pool import on_host
from .rows import ARCHIVED
from .sampling import Sampling
from .sealing import Sealed
from .selection import Coldness, Policy, coldest_first, distance, select

LEAST_WINDOW_BLOCKS = 4
MAX_APPROX_BYTES = 256
"""What a root holds."""
FOLLOWING_TOKENS = 256
"""While text is generated, so many of the newest tokens stand for the next ones."""


class _Part(Live):
    """What is computed over one selection."""

    before: Sequence[Cid] = ()
    """All blocks of the chain, also those that were not selected."""
    is_announced = False

    def _name_full(self) -> Sealed | None:
        sealed = super()._name_full()
        if sealed and self.approx and not self.is_announced:
            engine, blocks = self.engine, [*self.before, *sealed.cids]
            announce(engine.store, engine.model_cid, engine.geometry.block_size, blocks, self.approx)
            self.is_announced = True
        return sealed


class Selected:
    """One such conversation in memory. Not safe for use by several threads.

    At most as many blocks are in the pool as the model has positions for, those being made included, and one more while
    a block is filled. Half of them are selected; the other half is room for new tokens, and when that is used up the
    policy selects anew. Blocks that are not selected any more stay as long as there is room, the coldest go first.
    """

    def __init__(self, engine: Engine, policy: Policy, *, coldness: Coldness = distance) -> None:
        """Start an empty one.

        Raises `OutOfRange` for a model with positions for fewer than four blocks, `UnsupportedModel` on a device.
        """
        on_host(engine.pool, "going on over selected blocks")
        self.engine = engine
        self.policy = policy
        self.approx = f"selected blocks: {policy.name}"
        """Why the bytes are not exact."""
        self.tokens: list[int] = []
        self.blocks: list[Cid] = []
        """All of the chain, in order."""
        self.counts = Counts()
        self.chosen: list[int] = []
        """Blocks that the newest tokens see, by index, beside those made since."""
        self.window_blocks = engine.config.max_positions // engine.geometry.block_size
        if self.window_blocks < LEAST_WINDOW_BLOCKS:
            raise OutOfRange(
                f"{engine.config.max_positions} positions are too few to select blocks of "
                f"{engine.geometry.block_size} tokens", positions=engine.config.max_positions,
            )  # fmt: skip
        self.budget_blocks = self.window_blocks // 2
        self._coldness = coldness
        self._rows: dict[int, int] = {}
        """Block index -> its row in the pool, which is counted once for this."""
        self._live = self._new_live()
        self._start_tokens = 0
        """Where in the chain the tokens begin that the live part made."""

    @classmethod
    def resume(cls, engine: Engine, root_cid: Cid, policy: Policy) -> Self:
        """Go on from a recorded conversation of any length. Nothing is loaded before it is selected.

        Raises `IdentityMismatch`, and `NotFound` or `Corrupt` where the page table cannot be read.
        """
        root = load_root(engine.store, root_cid)
        require_model(engine, root)
        selected = cls(engine, policy)
        selected.approx = _both(root.approx, selected.approx)
        for step in walk(engine.store, root):
            selected.blocks.append(step.cid)
            selected.tokens += step.block.tokens
        selected.tokens += root.tail.tokens
        selected._live.check_tokens(selected.tokens)
        return selected

    def _new_live(self) -> Live:
        live = _Part(self.engine, approx=self.approx)
        live.counts, live.before = self.counts, tuple(self.blocks)
        return live

    @property
    def tail(self) -> list[int]:
        """The tokens after the last full block."""
        return self.tokens[len(self.blocks) * self.engine.geometry.block_size :]

    def append(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        """Take tokens as given, as `Live.append` does: part by part, each over the blocks selected for it.

        Raises `BlockNotFound`, `DigestMismatch` and `NotFinite` for a selected block whose rows are not here, or cannot
        be used: an approximate answer is not made of less than what was selected. The conversation is then closed.
        """
        self._live.check_tokens(tokens)
        size, total = self.engine.geometry.block_size, len(self.tokens) + len(tokens)
        pending = [*self.tail, *tokens]
        part_tokens = (self.window_blocks - self.budget_blocks) * size
        for start in range(0, len(pending), part_tokens) if tokens else ():
            part = pending[start : start + part_tokens]
            self._select(part, -(-len(part) // size))
            before = self._start_tokens - len(self._live.tokens)

            def draw(done: int, _: int, before: int = before) -> None:
                if progress:
                    progress(before + done, total)

            try:
                self._live.append(part, draw)
            finally:
                self._take_made()

    def generate(self, max_tokens: int, sampling: Sampling, stop: frozenset[int] = frozenset()) -> Iterator[int]:
        """Choose and record up to `max_tokens` tokens, yielding each; a stop token ends it and is not recorded."""
        if self.tokens and not self._live.tokens:
            self._begin()
        for _ in range(max_tokens):
            token = sampling.choose(self._live.next_logits(), len(self.tokens))
            if token in stop:
                return
            self.decode(token)
            yield token

    def decode(self, token: int) -> None:
        """Extend by one token. At the end of the window, blocks are selected anew."""
        if len(self._live.tokens) == self.window_blocks * self.engine.geometry.block_size:
            self._select(self.tokens[-FOLLOWING_TOKENS:], 1)
        if not self.tail:
            first_made = self._start_tokens // self.engine.geometry.block_size
            self._make_room([*self.chosen, *range(first_made, len(self.blocks))], 1)
        try:
            self._live.decode(token)
        finally:
            self._take_made()

    def _begin(self) -> None:
        """Select for a conversation that was resumed and goes on without new text."""
        tail = self.tail
        self._select(self.tokens[-FOLLOWING_TOKENS:], 1)
        if tail:
            self._live.append(tail)
            self._take_made()

    def _select(self, following: Sequence[int], room_blocks: int) -> None:
        """Let the policy choose, bring what it chose into the pool, and rotate it at neighbouring positions."""
        engine, size = self.engine, self.engine.geometry.block_size
        full = len(self.blocks)
        windows = [self.tokens[block * size : (block + 1) * size] for block in range(full)]
        budget = min(self.budget_blocks, self.window_blocks - room_blocks)
        chosen = select(self.policy, windows, following, budget)
        self._live.close()
        self._live = live = self._new_live()
        try:
            self._load(chosen, room_blocks)
            live.sequence.reserve(len(chosen) * size)
            live.sequence.table = [engine.pool.retain(self._rows[block]) for block in chosen]
            live.sequence.heat_blocks(0, len(chosen))
        except BaseException:
            self.close()
            raise
        live.blocks = [self.blocks[block] for block in chosen]
        live.tokens = [token for block in chosen for token in windows[block]]
        self.chosen = chosen
        self._start_tokens = full * size
        del self.tokens[self._start_tokens :]  # the tail comes again, with what follows

    def _load(self, chosen: Sequence[int], room_blocks: int) -> None:
        """Read the rows of chosen blocks that are not in the pool, after making room for them and `room_blocks`."""
        engine, absent = self.engine, [block for block in chosen if block not in self._rows]
        self._make_room(chosen, len(absent) + room_blocks)
        nodes = [self._node(block) for block in absent]
        for block in absent:
            self._rows[block] = engine.pool.allocate()
        source = engine.residency.lower.reading([self.blocks[block] for block in absent], nodes)
        engine.pool.fill(source, [node.kv for node in nodes], [self._rows[block] for block in absent])
        self.counts.tokens_reused += len(absent) * engine.geometry.block_size

    def _make_room(self, pinned: Sequence[int], blocks: int) -> None:
        """Let the coldest blocks go until there is room for so many more; those in use stay."""
        excess = max(0, len(self._rows) + blocks - self.window_blocks)
        for block in coldest_first(self._rows, len(self.blocks), {*pinned}, self._coldness)[:excess] if excess else ():
            self.engine.pool.release(self._rows.pop(block))

    def _node(self, block: int) -> Block:
        cid, size = self.blocks[block], self.engine.geometry.block_size
        node = Block.decode(self.engine.store.get(cid), verify=cid)
        window, leaves = self.tokens[block * size : (block + 1) * size], self.engine.geometry.leaves_per_block
        if field := misfit(node, model=self.engine.model_cid, prev=node.prev, tokens=window, leaves=leaves):
            raise MalformedNode(f"block {cid}: field {field!r} does not fit the model", field=field, cid=str(cid))
        return node

    def _take_made(self) -> None:
        """Note what the live part has made since the selection."""
        live, size = self._live, self.engine.geometry.block_size
        first, at = self._start_tokens // size, len(self.chosen)
        for index in range(len(self.blocks) - first + at, len(live.blocks)):
            if (row := live.sequence.table[index]) != ARCHIVED:
                self._rows[len(self.blocks)] = self.engine.pool.retain(row)
            self.blocks.append(live.blocks[index])
        self.tokens[self._start_tokens :] = live.tokens[at * size :]

    def checkpoint(self, *, title: str, created: str, parent: Cid | None = None, fork_at: int | None = None) -> Cid:
        """Write the root and give its CID. The tail is kept as tokens: it is computed over what is selected next."""
        engine = self.engine
        tail = Tail(tuple(self.tail), min(len(self.tail), self._live.prefilled), None, None)
        return build_root(
            engine.store, model=engine.model_cid, block_size=engine.geometry.block_size, blocks=self.blocks, tail=tail,
            title=title, created=created, parent=parent, fork_at=fork_at, approx=self.approx,
            payload_bytes=len(self.blocks) * engine.geometry.block_bytes,
        )  # fmt: skip

    def fork(self, at: int) -> NoReturn:
        """Refuse: what a fork of it would see is selected when it goes on."""
        raise Refused("fork what is recorded instead", hint="`cyberkv fork REF --at TOKEN`", at=at)

    def close(self) -> None:
        """Give the pool rows back."""
        self._live.close()
        while self._rows:
            self.engine.pool.release(self._rows.popitem()[1])


def _both(before: str | None, reason: str) -> str:
    """Add a reason to an earlier one, once, within what a root can say."""
    if before is None or reason in before.split("; "):
        return before or reason
    room = MAX_APPROX_BYTES - len(f"; {reason}".encode())
    return f"{before.encode()[:room].decode(errors='ignore')}; {reason}"
