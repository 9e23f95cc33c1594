"""What to bring next for several heads: one queue of blocks, the nearest use first. Pure: no clock, no thread.

A head is a place in a chain of blocks that is about to be read: a conversation, a beam, a draft. Two beams that part
after their second block:

>>> from ...cybergraph.cid import Cid
>>> a, b, c, d = (Cid.of(name, "dag-cbor", "sha2-256") for name in (b"a", b"b", b"c", b"d"))
>>> beams = [Head((a, b, c)), Head((a, b, d), at=1)]
>>> [(want.cid == each, want.distance_tokens) for want, each in zip(plan(beams, most_blocks=9), (a, b, d, c))]
[(True, 0), (True, 0), (True, 16), (True, 32)]
>>> [want.cid == d for want in plan(beams, most_blocks=1, in_use=[a, b])]
[True]
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ...cybergraph.cid import Cid


@dataclass(frozen=True, slots=True)
class Head:
    """One place in a chain. The blocks before `at` were read."""

    blocks: tuple[Cid, ...]
    at: int = 0
    served: int = 0
    """Blocks that were brought for it so far: of heads that are equally near, the one with the fewest goes first."""


@dataclass(frozen=True, slots=True)
class Want:
    """One block that is worth having."""

    cid: Cid
    distance_tokens: int
    """Tokens that the nearest of its heads reads before it."""
    head: int
    """That head, by its place among the heads."""
    index: int
    """Where it stands in the chain of that head."""


def plan(
    heads: Sequence[Head], *, most_blocks: int, block_size: int = 16, in_use: Container[Cid] = (),
    ahead_blocks: int | None = None,
) -> list[Want]:  # fmt: skip
    """List the blocks that are to be in host memory, in the order in which they are read: at most `most_blocks`.

    Each block is listed once, with the smallest of its distances. Those `in_use`, nearer than host memory, cost nothing
    and are left out. Heads are looked ahead of equally far, so their shares are equal: none is further ahead than
    another by more than a block, unless its chain ends or `ahead_blocks` of it are all there.
    """
    planned: dict[Cid, Want] = {}
    in_turn = sorted(range(len(heads)), key=lambda number: (heads[number].served, number))
    most_ahead = max((len(head.blocks) - head.at for head in heads), default=0)
    for step in range(most_ahead if ahead_blocks is None else min(ahead_blocks, most_ahead)):
        for number in in_turn:
            if len(planned) >= most_blocks:
                return list(planned.values())
            blocks, index = heads[number].blocks, heads[number].at + step
            if index < len(blocks) and (cid := blocks[index]) not in in_use and cid not in planned:
                planned[cid] = Want(cid, step * block_size, number, index)
    return list(planned.values())
