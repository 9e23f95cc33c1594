"""Requests replayed against a real index, with names for blocks and no bytes: what is found is counted."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.prefix import PrefixKey, prefix_keys

BLOCK_TOKENS = 16
MODEL = Cid.of(b"a model", "dag-cbor", "sha2-256")


class Asked(NamedTuple):
    """Tokens of requests, and those of them that were found in whole blocks."""

    tokens: int
    found: int

    def __add__(self, other: tuple[int, ...]) -> "Asked":  # type: ignore[override]
        return Asked(self.tokens + other[0], self.found + other[1])


class Replay:
    """One index that requests are asked of, and recorded in."""

    def __init__(self, index: Index, block_tokens: int = BLOCK_TOKENS) -> None:
        self._index = index
        self.block_tokens = block_tokens
        self.stored_blocks = 0
        self.asked_blocks = 0

    def ask(self, tokens: Sequence[int], *, record: bool = True) -> Asked:
        """Look a request up, then record it, so that the next one finds it."""
        keys = prefix_keys(MODEL, tokens, self.block_tokens)
        if record:
            keys = iter(kept := list(keys))
        found = self._index.lookup_chain(keys, "here")
        if record:
            self._record(kept, found)
        return Asked(len(tokens), len(found) * self.block_tokens)

    def _record(self, keys: Sequence[PrefixKey], found: Sequence[Cid]) -> None:
        new = [Cid.of(key, "dag-cbor", "sha2-256") for key in keys[len(found) :]]
        before = [found[-1] if found else None, *new]
        rows = zip(keys[len(found) :], new, before, strict=False)
        self._index.add_blocks(IndexEntry(key, block, prev, MODEL, "here") for key, block, prev in rows)
        self.stored_blocks += len(new)
        self.asked_blocks += len(keys)


@contextmanager
def replay(block_tokens: int = BLOCK_TOKENS) -> Iterator[Replay]:
    """An index of its own, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, Index(Path(folder) / "index") as index:
        yield Replay(index, block_tokens)


def text(seed: int, count: int) -> list[int]:
    """Tokens that are the same in every run, and others for another seed."""
    return [(seed * 7919 + 104729 * i + i * i) % 49_999 for i in range(count)]


Requests = list[list[int]]


def few_shot() -> Requests:
    """Eight questions behind one instruction and eight examples."""
    shared = text(1, 96) + text(2, 8 * 120)
    return [shared + text(100 + question, 90) for question in range(8)]


def chat() -> Requests:
    """One dialogue of twelve turns, sent whole with each."""
    turns = [text(200 + turn, 150 + 17 * (turn % 5)) for turn in range(12)]
    return [[*text(3, 96), *(token for turn in turns[:sent] for token in turn)] for sent in range(1, len(turns) + 1)]


def tree() -> Requests:
    """Thoughts that branch in two, five deep, each node asked for once."""
    level, requests = [text(4, 200)], []
    for depth in range(5):
        level = [path + text(300 + 2 * depth + side + path[-1], 70) for path in level for side in (0, 1)]
        requests += level
    return requests


def agents() -> Requests:
    """Ten agents with the same tools and instruction and tasks of their own, four steps each, taking turns."""
    tools = text(5, 1800)
    return [
        [*tools, *(token for done in range(step + 1) for token in text(1000 + 10 * agent + done, 110))]
        for step in range(4)
        for agent in range(10)
    ]


WORKLOADS = {"few-shot": few_shot, "chat": chat, "tree": tree, "agents": agents}
