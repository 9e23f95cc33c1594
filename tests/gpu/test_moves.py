"""Moves between a device and what is below it, on a fake device: what comes, what never comes, and who waits."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from random import Random
from threading import Event, get_ident

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, TierFull
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.cuda.device import TorchDevice
from cyberkv.runtime.cuda.devicepool import FREE_PERCENT, PADDING, BlockTables, DevicePool
from cyberkv.runtime.cuda.devicerows import DeviceRows
from cyberkv.runtime.cuda.moves import SLOT_BYTES, SLOTS
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.pool import HeapBlock, Pool
from cyberkv.runtime.rows import ARCHIVED
from tests.gpu.fakes import FakeDevice
from tests.gpu.rigs import Later, Rig
from tests.laws.shelves import BLOCK_BYTES, GEOMETRY

GROUPS = GEOMETRY.leaves_per_block


@contextmanager
def threaded(**options: object) -> Iterator[Rig]:
    """A rig whose leaves are read by a thread of its own."""
    with ThreadPoolExecutor(1) as executor:
        yield Rig(executor=executor, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "geometry",
    [
        GEOMETRY,
        Geometry(5, 2, 4, block_size=2, layers_per_leaf=2, dtype="bf16"),
        Geometry(3, 1, 4, block_size=2, layers_per_leaf=2, dtype="f32", scheme="int8/row/f32"),
    ],
)
def test_a_row_has_the_bytes_of_the_host_pool(geometry: Geometry) -> None:
    pool, host = DeviceRows(FakeDevice(Random(0)), geometry, 3), Pool(geometry, 3)
    assert (pool.rows.shape, pool.rows.dtype) == (host.rows.shape, host.rows.dtype)
    text = bytes(i % 251 for i in range(geometry.block_bytes))
    host.copy_in(1, HeapBlock(geometry, bytearray(text)))
    pool.rows[1] = host.rows[1]
    assert pool.bytes[1].numpy().tobytes() == text
    assert [pool.leaf(1, group).numpy().tobytes() for group in range(geometry.leaves_per_block)] == host.leaves(1)
    assert pool.bytes[0].numpy().tobytes() != text


def test_the_pool_takes_the_memory_it_is_given_or_a_share_of_what_is_free() -> None:
    device = FakeDevice(Random(0), device_bytes=100 * BLOCK_BYTES)
    assert DevicePool.sized(device, GEOMETRY, 7 * BLOCK_BYTES + 1).capacity_blocks == 7
    assert DevicePool.sized(device, GEOMETRY).capacity_blocks == 93 * FREE_PERCENT // 100
    for asked_bytes, message in ((BLOCK_BYTES - 1, "a block takes"), (1 << 40, "no room")):
        with pytest.raises(TierFull, match=message):
            DevicePool.sized(device, GEOMETRY, asked_bytes)
    with pytest.raises(TierFull, match="page-locked"):
        DevicePool(device, GEOMETRY, 1, host_bytes=1 << 40)


@pytest.mark.parametrize("room_blocks", [0, 1, 3, 4, 12])
def test_below_the_device_is_as_much_as_the_system_gives(room_blocks: int) -> None:
    """Where it may be less: half, or half of that. The control: where a size was asked for, it is an error."""
    ring_bytes = SLOTS * SLOT_BYTES
    device = FakeDevice(Random(0), pinned_bytes=ring_bytes + max(1, room_blocks * BLOCK_BYTES))
    pool = DevicePool(device, GEOMETRY, 4, host_bytes=12 * BLOCK_BYTES, may_be_less=True)
    assert pool.host_bytes == {0: 0, 1: 1, 3: 3, 4: 3, 12: 12}[room_blocks] * BLOCK_BYTES
    device.left_pinned_bytes = ring_bytes + max(1, room_blocks * BLOCK_BYTES)
    if room_blocks < 12:
        with pytest.raises(TierFull, match="page-locked"):
            DevicePool(device, GEOMETRY, 4, host_bytes=12 * BLOCK_BYTES)
    device.left_pinned_bytes = ring_bytes - 1
    with pytest.raises(TierFull, match="page-locked") as refused:
        DevicePool(device, GEOMETRY, 4, host_bytes=12 * BLOCK_BYTES, may_be_less=True)
    assert "limit" in str(refused.value.hint)


@given(data=st.data())
def test_block_tables_are_those_of_the_sequences(data: st.DataObject) -> None:
    """Oracle: the page tables, with padding behind them. What a call that fails leaves, the next one mends."""
    device = FakeDevice(data.draw(st.randoms(use_true_random=False)))
    tables = BlockTables(DeviceRows(device, GEOMETRY, 8), 2, 2)
    known: list[list[int]] = [[], []]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, 1))
        table = data.draw(st.lists(st.sampled_from([*range(8), ARCHIVED]), max_size=6))
        if data.draw(st.booleans()):
            device.fails_at, device.failure = device.calls + data.draw(st.integers(1, 3)), KeyboardInterrupt()
        try:
            tables.set(at, table)
        except KeyboardInterrupt:
            tables.set(at, table)
        device.fails_at = 0
        known[at] = table
        device.drain()
        wide = tables.tensor.shape[1]
        rows = [[PADDING if row == ARCHIVED else row for row in each] for each in known]
        assert tables.tensor.tolist() == [each + [PADDING] * (wide - len(each)) for each in rows]
        assert tables.tensor.dtype is torch.int32
    assert device.violations == []


def test_only_new_entries_of_a_block_table_are_written() -> None:
    device = FakeDevice(Random(0))
    tables = BlockTables(DeviceRows(device, GEOMETRY, 8), 1, 4)
    written = []
    device.upload = lambda target, entries, stream: written.append(list(entries))  # type: ignore[method-assign]
    for table in ([1, 2], [1, 2], [1, 2, 3], [1, 4], []):
        tables.set(0, table)
    assert written == [[1, 2], [3], [4, PADDING], [PADDING, PADDING]]


def test_a_block_table_that_has_no_room_to_grow_stays_as_it_was() -> None:
    device = FakeDevice(Random(0), device_bytes=8 * BLOCK_BYTES + 16)
    tables = BlockTables(DeviceRows(device, GEOMETRY, 8), 1, 4)
    tables.set(0, [1, 2])
    with pytest.raises(TierFull):
        tables.set(0, [1, 2, 3, 4, 5])
    device.drain()
    assert tables.tensor.tolist() == [[1, 2, PADDING, PADDING]]


def test_who_computes_never_waits_for_the_device() -> None:
    """The control: the thread that reads does, for a slot, and so does who wants to read a row below."""
    with threaded(slots=1, leaves_per_slot=1) as rig:
        rows = [rig.pool.allocate() for _ in range(3)]
        with rig.moves.load(rig.store, rig.leaves[:3], rows) as loading:
            for layer in range(4):
                loading.take(layer)
                rig.look(rows[0])
            loading.finish()
        rig.tables.set(0, rows)
        below = rig.moves.save(rows[0])
        rig.pool.release(rows[0])
        with rig.moves.restore([(below, rig.pool.allocate())]) as restored:
            restored.finish()
        assert rig.device.host_waits
        assert get_ident() not in rig.device.host_waits
        assert rig.host_bytes(below) == rig.bytes[0]
        assert get_ident() in rig.device.host_waits


def test_first_layers_are_computed_while_the_others_are_read() -> None:
    with threaded() as rig:
        rows, may_go = [rig.pool.allocate() for _ in range(2)], Event()
        rig.store.before = lambda: rig.store.reads < 1 or may_go.wait() or None
        with rig.moves.load(rig.store, rig.leaves[:2], rows) as loading:
            loading.take(0)
            loading.take(1)
            seen = [rig.device.read(rig.pool.leaf(row, 0)) for row in rows]
            rig.device.drain()
            assert seen == [[rig.group(0, 0)], [rig.group(1, 0)]]
            assert rig.pool.leaf(rows[0], 1).numpy().tobytes() != rig.group(0, 1)  # the control
            may_go.set()
            loading.take(2)
            seen = [rig.device.read(rig.pool.leaf(row, 1)) for row in rows]
            rig.device.drain()
            assert seen == [[rig.group(0, 1)], [rig.group(1, 1)]]


def test_leaves_are_read_and_checked_while_those_before_are_copied() -> None:
    """A device that does nothing by itself still has copies to do when the second slot is filled."""
    rig = Rig(seed=1, slots=4, leaves_per_slot=1)
    rig.device.drain()
    rig.device._paces = (0,)
    under_way: list[int] = []
    rig.store.before = lambda: under_way.append(len(rig.device._pending))
    rows = [rig.pool.allocate() for _ in range(2)]
    rig.moves.load(rig.store, rig.leaves[:2], rows).close()
    assert under_way == [0, 1, 2, 3]
    assert rig.device.host_waits == []


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("block", range(4))
def test_what_does_not_hash_to_its_name_never_reaches_the_device(block: int, group: int, absent: bool) -> None:
    rig = Rig(seed=block)
    leaf = rig.leaves[block][group]
    bad = bytearray(rig.store.get(leaf))
    bad[0] ^= 1
    if absent:
        rig.store.delete_many([leaf])
    else:
        rig.store.damage(leaf)
    rows = [rig.pool.allocate() for _ in range(4)]
    arrived: list[bytes] = []
    rig.device.copy = spy(rig.device, arrived)  # type: ignore[method-assign]
    with rig.moves.load(rig.store, rig.leaves[:4], rows) as loading:
        with pytest.raises(BlockNotFound if absent else DigestMismatch) as caught:
            loading.take(3)
        assert caught.value.data["cid"] == str(leaf)
        assert loading.finish() == block
    seen = [rig.look(row) for row in rows[:block]]
    rig.device.drain()
    assert seen == [[text] for text in rig.bytes[:block]]
    assert bytes(bad) not in arrived
    assert not block or rig.group(0, 0) in arrived  # the control
    assert rig.device.violations == []


def spy(device: FakeDevice, arrived: list[bytes]):  # type: ignore[no-untyped-def]
    copy = device.copy

    def spied(pairs: list[tuple[torch.Tensor, torch.Tensor]], stream: object) -> None:
        arrived.extend(source.numpy().tobytes() for _, source in pairs)
        copy(pairs, stream)

    return spied


@pytest.mark.parametrize("failure", [OSError("gone"), MemoryError("gone"), KeyboardInterrupt("gone")])
@pytest.mark.parametrize("read", range(1, 5))
def test_a_store_that_fails_ends_the_loading(read: int, failure: BaseException) -> None:
    rig = Rig(seed=read)
    rows = [rig.pool.allocate() for _ in range(4)]
    rig.store.fails_at, rig.store.failure = read, failure
    with rig.moves.load(rig.store, rig.leaves[:4], rows) as loading:
        for wait in (lambda: loading.take(3), loading.finish):
            with pytest.raises(type(failure), match="gone"):
                wait()
        assert loading.limit == 0
    for row in rows:
        rig.pool.release(row)
    assert rig.is_clean()
    again = [rig.pool.allocate() for _ in range(4)]
    with rig.moves.load(rig.store, rig.leaves[:4], again) as loading:
        assert loading.finish() == 4
    seen = [rig.look(row) for row in again]
    rig.device.drain()
    assert seen == [[text] for text in rig.bytes[:4]]


def test_a_loading_that_is_given_up_keeps_its_rows_until_nothing_is_read_into_them() -> None:
    with threaded() as rig:
        rows, started, may_go = [rig.pool.allocate() for _ in range(3)], Event(), Event()

        def before() -> None:
            started.set()
            may_go.wait()

        rig.store.before = before
        with suppress(KeyboardInterrupt), rig.moves.load(rig.store, rig.leaves[:3], rows) as loading:
            started.wait()
            for row in rows:
                rig.pool.release(row)
            assert rig.pool.used_blocks == 3
            may_go.set()
            raise KeyboardInterrupt
        assert rig.is_clean()
        assert rig.store.reads == 1
        assert loading.finish() == 0
        with pytest.raises(RuntimeError, match="closed"):
            loading.take(0)


def test_a_loading_that_was_given_up_before_it_began_reads_nothing() -> None:
    later = Later()
    rig = Rig(executor=later)
    row = rig.pool.allocate()
    rig.moves.load(rig.store, rig.leaves[:1], [row]).close()
    rig.pool.release(row)
    later.run()
    assert rig.store.reads == 0
    assert rig.is_clean()


def test_an_executor_that_takes_nothing_leaves_nothing_behind() -> None:
    with threaded() as rig:
        pass
    row = rig.pool.allocate()
    with pytest.raises(RuntimeError, match="shutdown"):
        rig.moves.load(rig.store, rig.leaves[:1], [row])
    rig.pool.release(row)
    assert rig.is_clean()


def test_where_there_is_no_room_below_a_row_stays() -> None:
    rig = Rig(host_blocks=1)
    rows = [rig.pool.allocate() for _ in range(2)]
    texts = [rig.fill(row, row + 1) for row in rows]
    saved = rig.moves.save(rows[0])
    with pytest.raises(TierFull, match="slots of host memory"):
        rig.moves.save(rows[1])
    seen = rig.look(rows[1])
    assert rig.host_bytes(saved) == texts[0]
    saved.close()
    saved.close()
    with pytest.raises(RuntimeError, match="given back"):
        saved.leaves()
    other = rig.moves.save(rows[1])
    assert rig.host_bytes(other) == texts[1]
    rig.device.drain()
    assert seen == [texts[1]]
    assert rig.pool.check_integrity() == []


def test_full_of_rows_in_use_the_pool_refuses() -> None:
    rig = Rig(rows=2)
    rows = [rig.pool.allocate() for _ in range(2)]
    texts = [rig.fill(row, row + 1) for row in rows]
    with pytest.raises(TierFull, match="all 2 pool rows"):
        rig.pool.allocate()
    seen = [rig.look(row) for row in rows]
    rig.device.drain()
    assert seen == [[text] for text in texts]
    rig.pool.release(ARCHIVED)
    assert rig.pool.used_blocks == 2


def test_integrity_is_found_wanting() -> None:
    rig = Rig()
    assert rig.pool.check_integrity() == []
    rig.moves.ring.give(rig.moves.ring._free[0])
    assert rig.pool.check_integrity() == ["a slot is free twice"]


def test_leaves_come_from_a_disk_straight_into_page_locked_memory(disk_store: DiskStore) -> None:
    with threaded() as rig:
        leaves = [leaf for each in rig.leaves[:4] for leaf in each]
        disk_store.put_many([(leaf, rig.store.get(leaf)) for leaf in leaves])
        rows = [rig.pool.allocate() for _ in range(4)]
        with rig.moves.load(disk_store, rig.leaves[:4], rows) as loading:
            assert loading.finish() == 4
        seen = [rig.look(row) for row in rows]
        rig.device.drain()
        assert seen == [[text] for text in rig.bytes[:4]]


def test_several_threads_load_at_once_through_one_ring() -> None:
    """Into rows that others have just read, and given back."""
    with ThreadPoolExecutor(3) as executor:
        rig = Rig(executor=executor, rows=6, slots=2, leaves_per_slot=1)
        for _ in range(5):
            rows = [rig.pool.allocate() for _ in range(6)]
            loadings = [rig.moves.load(rig.store, rig.leaves[i : i + 2], rows[i : i + 2]) for i in (0, 2, 4)]
            assert [loading.finish() for loading in loadings] == [2, 2, 2]
            seen = [rig.look(row) for row in rows]
            for loading in loadings:
                loading.close()
            for row in rows:
                rig.pool.release(row)
        assert rig.is_clean()
        rig.device.drain()
        assert seen == [[text] for text in rig.bytes]


def test_after_close_nothing_is_queued_any_more() -> None:
    rig = Rig()
    rig.device.drain()
    rig.device._paces = (0,)
    row = rig.pool.allocate()
    with rig.moves.load(rig.store, rig.leaves[:1], [row]) as loading:
        assert loading.finish() == 1
    rig.moves.save(row).close()
    assert rig.device._pending != []
    rig.pool.close()
    assert rig.device._pending == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_device_too() -> None:
    blocks = Rig()
    with closing(DevicePool.sized(TorchDevice(), GEOMETRY, 8 * BLOCK_BYTES, host_bytes=2 * BLOCK_BYTES)) as pool:
        moves = pool.moves
        rows = [pool.allocate() for _ in range(5)]
        with moves.load(blocks.store, blocks.leaves[:5], rows) as loading:
            for layer in range(4):
                loading.take(layer)
            assert loading.finish() == 5
        below = moves.save(rows[3])
        pool.release(rows[3])
        target = pool.allocate()
        with moves.restore([(below, target)]) as restored:
            restored.finish()
        tables = BlockTables(pool, 2, 2)
        tables.set(1, rows)
        torch.cuda.synchronize()
        assert [pool.bytes[row].cpu().numpy().tobytes() for row in rows] == blocks.bytes[:5]
        assert b"".join(below.leaves()) == blocks.bytes[3]
        assert tables.tensor.tolist()[1][:5] == rows
