"""Numbers that are not finite never come into a pool, on the host or on a device, unless they were computed here."""

import math
from itertools import pairwise

import pytest

from cyberkv.cybergraph.identity import Difference
from cyberkv.cybergraph.nodes import Block
from tests.laws.pools import pools  # noqa: F401 - the fixture
from tests.laws.shelves import BLOCK_BYTES, Home, content
from tests.numerics.poison import forge

pytestmark = pytest.mark.usefixtures("pools")


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("own", [False, True])
def test_a_number_that_is_not_finite_ends_the_run_unless_it_was_computed_here(group: int, own: bool) -> None:
    home = Home(5)
    forged = forge(home.store, home.store, home.blocks, {(3, group): (1, math.nan)})
    residency = home.residency(8, own=set if own else lambda _: ())
    with residency.ensure(forged) as lease:
        assert len(lease.rows) == (5 if own else 3)
        for cid, row in zip(lease.cids, lease.rows, strict=True):
            assert content(residency.pool, row) == b"".join(map(home.store.get, Block.decode(home.store.get(cid)).kv))
    if not own:
        assert lease.miss is not None
        assert (lease.miss.position_start, lease.miss.difference) == (12, Difference("key", "finite", "nan"))
    assert home.store.has(Block.decode(home.store.get(forged[3])).kv[group])
    with residency.ensure(home.blocks) as lease:  # the control
        assert (len(lease.rows), lease.miss) == (5, None)
    assert residency.check_integrity() == []


def test_nor_does_it_come_to_host_memory() -> None:
    home = Home(2)
    forged = forge(home.store, home.store, home.blocks, {(1, 0): (0, math.inf)})
    residency = home.residency(2, host_bytes=4 * BLOCK_BYTES)
    assert [residency.warm(cid, prev) for prev, cid in pairwise([None, *forged])] == [True, False]
    assert residency.check_integrity() == []
