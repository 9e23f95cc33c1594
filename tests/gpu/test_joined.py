"""Copies that are joined move the bytes that each would have moved, in their order."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.runtime.cuda.joined import joined
from tests.laws.shelves import GEOMETRY

PIECES = st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 2), st.integers(0, 9), st.sampled_from([4, 6]))
"""Of a target: which memory and where; of a source; and how long."""


def memories() -> list[torch.Tensor]:
    return [torch.arange(60 * i, 60 * (i + 1)).to(torch.uint8) for i in range(3)]


def everywhere(_: torch.Tensor) -> bool:
    return True


@given(pieces=st.lists(PIECES, max_size=8), repeats=st.integers(1, 3), step=st.integers(0, 12))
def test_every_byte_is_as_it_would_be(pieces: list[tuple[int, ...]], repeats: int, step: int) -> None:
    """Pieces that overlap, come twice or go backwards, and copies within one memory, are among them."""

    def pairs(here: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (here[a][i : i + size], here[b][j : j + size])
            for a, first, b, second, size in pieces
            for i, j in ((first + step * k, second + step * k) for k in range(repeats))
        ]

    one_by_one, together = memories(), memories()
    for target, source in pairs(one_by_one):
        target.copy_(source.clone())
    for target, source in joined(pairs(together), everywhere):
        target.copy_(source.clone())
    assert all(map(torch.equal, one_by_one, together))


def test_leaves_of_rows_that_follow_each_other_are_one_copy() -> None:
    g, size = GEOMETRY, GEOMETRY.leaf_bytes(0)
    rows, slot = torch.zeros(9, g.block_bytes, dtype=torch.uint8), torch.ones(9 * size, dtype=torch.uint8)
    for order, copies in (([2, 3, 4, 5], 1), ([0, 2, 4, 6], 1), ([7, 8, 1, 2, 3], 2), ([5, 4], 2), ([3], 1), ([], 0)):
        pairs = [(rows[row, :size], slot[i * size : (i + 1) * size]) for i, row in enumerate(order)]
        assert len(list(joined(pairs, everywhere))) == copies
        assert len(list(joined(pairs))) == len(order)  # memory of the host has no gaps
    other = torch.zeros_like(rows)
    [(target, source)] = joined((other[row], rows[row + 4]) for row in range(3))
    assert target.is_contiguous()
    assert source.is_contiguous()
