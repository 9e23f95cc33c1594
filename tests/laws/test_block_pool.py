"""What every pool of blocks does with bytes, in host memory and on a device."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, MalformedBytes, TierFull, UnsupportedModel
from cyberkv.cybergraph.prefix import prefix_key
from cyberkv.runtime.pool import BlockPool, Pool, on_host
from cyberkv.runtime.sealing import Unsealed, name_blocks
from cyberkv.runtime.tiers.lower import Over
from tests.contracts.synthetic import BLOCK_SIZE, make_model
from tests.gpu.rigs import WatchedStore
from tests.laws.pools import KINDS, late_pool
from tests.laws.shelves import BLOCK_BYTES, GEOMETRY, MODEL, Home, content, put

ROWS, HOST_BLOCKS = 4, 2
both = pytest.mark.parametrize("kind", KINDS)


def make(kind: str) -> BlockPool:
    return KINDS[kind](ROWS, HOST_BLOCKS * BLOCK_BYTES)


def texts(count: int) -> list[bytes]:
    return [bytes((i * 7 + at) % 251 for at in range(BLOCK_BYTES)) for i in range(1, count + 1)]


def filled(pool: BlockPool, count: int) -> Iterator[tuple[int, bytes]]:
    for text in texts(count):
        row = pool.allocate()
        put(pool, row, text)
        yield row, text


@both
def test_leaves_that_are_read_into_rows_are_there(kind: str) -> None:
    home, pool = Home(3), make(kind)
    rows = [pool.allocate() for _ in range(3)]
    pool.fill(home.store, [home.nodes[cid].kv for cid in home.blocks], rows)
    assert [content(pool, row) for row in rows] == [home.bytes[cid] for cid in home.blocks]
    assert pool.read(rows)[0] == pool.read(rows[:1])[0] != pool.read(rows[1:])[0]
    assert pool.check_integrity() == []


@both
@pytest.mark.parametrize("absent", [False, True])
def test_a_leaf_that_does_not_come_is_named_and_the_rows_may_go(kind: str, absent: bool) -> None:
    home, pool = Home(3, store=WatchedStore()), make(kind)
    leaf = home.nodes[home.blocks[1]].kv[1]
    leaves = [home.nodes[cid].kv for cid in home.blocks]
    if absent:
        home.store.delete_many([leaf])
    else:
        home.store.damage(leaf)  # type: ignore[attr-defined]
    rows = [pool.allocate() for _ in range(3)]
    with pytest.raises(BlockNotFound if absent else DigestMismatch) as caught:
        pool.fill(home.store, leaves, rows)
    assert caught.value.data["cid"] == str(leaf)
    for row in rows:
        pool.release(row)
    again = [pool.allocate() for _ in range(2)]
    pool.fill(home.store, [leaves[2], leaves[0]], again)
    assert [content(pool, row) for row in again] == [home.bytes[home.blocks[2]], home.bytes[home.blocks[0]]]
    assert pool.used_blocks == 2


@both
def test_what_a_store_raises_comes_out(kind: str) -> None:
    home, pool = Home(2, store=WatchedStore()), make(kind)
    home.store.fails_at = 1  # type: ignore[attr-defined]
    rows, leaves = [pool.allocate() for _ in range(2)], [home.nodes[cid].kv for cid in home.blocks]
    with pytest.raises(OSError, match="the disk is gone"):
        pool.fill(home.store, leaves, rows)
    pool.fill(home.store, leaves, rows)
    assert [content(pool, row) for row in rows] == [home.bytes[cid] for cid in home.blocks]


@both
def test_leaves_that_no_store_took_come_before_those_of_the_store(kind: str) -> None:
    home, pool = Home(2), make(kind)
    loose = {leaf: home.store.get(leaf) for leaf in home.nodes[home.blocks[0]].kv}
    home.store.delete_many(loose)
    rows, leaves = [pool.allocate() for _ in range(2)], [home.nodes[cid].kv for cid in home.blocks]
    with pytest.raises(BlockNotFound):  # the control
        pool.fill(home.store, leaves, rows)
    pool.fill(Over(loose, home.store), leaves, rows)
    assert [content(pool, row) for row in rows] == [home.bytes[cid] for cid in home.blocks]
    with pytest.raises(MalformedBytes) as caught:
        pool.fill(Over({**loose, leaves[0][1]: b"short"}, home.store), leaves, rows)
    assert caught.value.data["cid"] == str(leaves[0][1])


@both
def test_a_row_that_went_down_comes_up_whatever_became_of_it(kind: str) -> None:
    pool = make(kind)
    (row, text), (other, _) = filled(pool, 2)
    below = pool.copy_out(row)
    put(pool, row, bytes(BLOCK_BYTES))
    pool.release(other)
    target = pool.allocate()
    pool.copy_in(target, below)
    assert b"".join(below.leaves()) == text
    below.close()
    below.close()
    assert (content(pool, target), content(pool, row)) == (text, bytes(BLOCK_BYTES))


@both
def test_host_memory_is_written_and_brought_up(kind: str) -> None:
    pool, [text] = make(kind), texts(1)
    block, row = pool.host_block(), pool.allocate()
    for leaf, (start, end) in zip(block.leaves(), GEOMETRY.leaf_spans, strict=True):
        leaf[:] = text[start:end]
    pool.copy_in(row, block)
    block.close()
    assert content(pool, row) == text


@pytest.mark.parametrize("kind", KINDS)
@given(tokens=st.integers(1, BLOCK_SIZE))
def test_a_tail_is_what_a_host_pool_says_and_goes_back(kind: str, tokens: int) -> None:
    """Oracle: the rows as one tensor. Behind the tail stands anything."""
    pool, host = make(kind), Pool(GEOMETRY, 1)
    [(row, text)] = filled(pool, 1)
    put(host, host.allocate(), text)
    expected = [
        host.rows[0, first : first + count, :, :tokens].contiguous().numpy().tobytes()
        for first, count in GEOMETRY.leaf_layers
    ]
    tail, other = pool.tail_leaves(row, tokens), pool.allocate()
    assert tail == expected
    pool.fill_tail(other, tokens, tail)
    assert pool.tail_leaves(other, tokens) == expected
    assert (content(pool, other) == text) is (tokens == BLOCK_SIZE)


@pytest.mark.parametrize("kind", KINDS)
@given(tokens=st.integers(1, BLOCK_SIZE))
def test_a_cut_block_is_copied_and_is_another_row(kind: str, tokens: int) -> None:
    pool = make(kind)
    [(row, text)] = filled(pool, 1)
    target = pool.allocate()
    pool.copy_cut(row, target, tokens)
    assert pool.tail_leaves(target, tokens) == pool.tail_leaves(row, tokens)
    put(pool, target, bytes(BLOCK_BYTES))
    assert content(pool, row) == text
    assert pool.tail_leaves(target, tokens) != pool.tail_leaves(row, tokens)


@both
def test_blocks_are_named_as_on_the_host(kind: str) -> None:
    pool, host = make(kind), Pool(GEOMETRY, 2)
    tokens, key = tuple(range(BLOCK_SIZE)), prefix_key(MODEL, None, range(BLOCK_SIZE))
    made, right = (
        name_blocks(each, make_model(), MODEL, None, [Unsealed(row, tokens, key) for row, _ in filled(each, 2)], "here")
        for each in (pool, host)
    )
    assert made.cids == right.cids
    assert [(cid, bytes(data)) for cid, data in made.items] == [(cid, bytes(data)) for cid, data in right.items]
    assert len({cid for cid, _ in made.items}) == 2 * (1 + GEOMETRY.leaves_per_block)


def test_on_a_device_host_memory_ends_where_it_was_told_to() -> None:
    pool = make("late")
    rows = [row for row, _ in filled(pool, 3)]
    held = [pool.copy_out(row) for row in rows[:HOST_BLOCKS]]
    for more in (lambda: pool.copy_out(rows[2]), pool.host_block):
        with pytest.raises(TierFull, match="slots of host memory"):
            more()
    held.pop().close()
    pool.host_block().close()
    assert content(pool, rows[2]) == texts(3)[2]
    assert pool.check_integrity() == []


def test_what_reads_rows_in_place_is_refused_on_a_device() -> None:
    host = make("host")
    assert on_host(host, "the test") is host
    with pytest.raises(UnsupportedModel, match="the test reads rows in host memory") as caught:
        on_host(late_pool(1, 0), "the test")
    assert caught.value.data == {"field": "pool", "got": "DevicePool"}
