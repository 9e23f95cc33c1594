"""Rooms of a staging: aligned, apart from each other, free again when nobody refers to them."""

import ctypes
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.errors import PeerUnreachable
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES
from cyberkv.cybergraph.staging import BUFFERS, PAGE_BYTES, Staging

MIB = 1 << 20


def address(room: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(room))


def test_rooms_lie_page_by_page_one_after_the_other() -> None:
    staging = Staging(16 * MIB)
    rooms = [staging.room(size_bytes) for size_bytes in (PAGE_BYTES, 1, PAGE_BYTES + 1, 5)]
    places = [address(room) for room in rooms]
    assert all(place % PAGE_BYTES == 0 for place in places)
    assert [place - places[0] for place in places] == [0, PAGE_BYTES, 2 * PAGE_BYTES, 4 * PAGE_BYTES]
    assert [room.nbytes for room in rooms] == [PAGE_BYTES, 1, PAGE_BYTES + 1, 5]


@given(st.lists(st.tuples(st.integers(0, MAX_LEAF_BYTES), st.booleans()), max_size=40))
def test_no_two_rooms_in_use_share_a_byte(steps: list[tuple[int, bool]]) -> None:
    staging = Staging(8 * MIB)
    held: list[memoryview] = []
    for size_bytes, drops in steps:
        while staging.in_use_bytes + size_bytes > 4 * MIB:
            held.pop(0)
        held.append(staging.room(size_bytes))
        held[-1][:] = bytes([len(held) % 256]) * size_bytes
        if drops:
            held.pop(0)
        spans = sorted((address(room), address(room) + room.nbytes) for room in held if room.nbytes)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    held.clear()
    assert staging.in_use_bytes == 0


def test_a_slice_keeps_its_room() -> None:
    staging = Staging(0)
    part = staging.room(2 * PAGE_BYTES)[:10]
    assert staging.in_use_bytes == 2 * PAGE_BYTES
    del part
    assert staging.in_use_bytes == 0


def test_who_finds_no_room_waits_until_one_is_dropped() -> None:
    staging = Staging(BUFFERS * MAX_LEAF_BYTES)
    held = [staging.room(MAX_LEAF_BYTES) for _ in range(BUFFERS)]
    got = threading.Event()

    def want() -> None:
        staging.room(MAX_LEAF_BYTES)
        got.set()

    thread = threading.Thread(target=want)
    thread.start()
    assert not got.wait(0.1)
    held.pop()
    assert got.wait(120)
    thread.join()


def test_closing_ends_the_wait() -> None:
    staging = Staging(0)
    held = [staging.room(MAX_LEAF_BYTES) for _ in range(BUFFERS)]
    threading.Timer(0.1, staging.close).start()
    with pytest.raises(PeerUnreachable):
        staging.room(1)
    assert len(held) == BUFFERS
