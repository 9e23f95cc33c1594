"""Slab files alone: sizes, alignment, growth, short and split calls."""

import os
from pathlib import Path

import pytest

from cyberkv.cybergraph.store import slab
from cyberkv.cybergraph.store.slab import SlabFiles, SlabId, slot_kib, slots_per_slab


@pytest.fixture
def files(tmp_path: Path) -> SlabFiles:
    return SlabFiles(tmp_path, read_only=False)


@pytest.mark.parametrize("size_bytes", [0, 1, 4095, 4096, 4097, 245_760, 2 << 20])
def test_a_slot_is_the_leaf_rounded_up_to_4_kib(size_bytes: int) -> None:
    kib = slot_kib(size_bytes)
    assert kib % 4 == 0
    assert size_bytes <= kib * 1024
    assert kib == 4 or size_bytes > (kib - 4) * 1024


def test_a_slab_holds_at_least_one_slot() -> None:
    assert slots_per_slab(240) == 4369
    assert slots_per_slab(1 << 30) == 1


def test_files_grow_by_doubling_and_are_allocated(files: SlabFiles, tmp_path: Path) -> None:
    name = SlabId(8, 0)
    assert files.size_bytes(name) is None
    sizes = []
    for slots in range(1, 40):
        files.reserve(name, slots)
        sizes.append(files.size_bytes(name))
        assert sizes[-1] is not None
        assert sizes[-1] >= slots * 8192
    assert len(set(sizes)) < 10  # far fewer growths than slots
    stat = (tmp_path / "slab-8-0.kvd").stat()
    assert stat.st_blocks * 512 >= stat.st_size  # allocated, not a hole
    files.reserve(name, 3)
    assert files.size_bytes(name) == sizes[-1]


def test_growth_is_bounded(files: SlabFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab, "GROWTH_BYTES", 64 * 1024)
    monkeypatch.setattr(slab, "SLAB_BYTES", 100 * 8192)
    name = SlabId(8, 0)
    last = 0
    for slots in range(1, 101):
        files.reserve(name, slots)
        size_bytes = files.size_bytes(name)
        assert size_bytes is not None
        assert size_bytes - last <= 64 * 1024
        last = size_bytes
    assert last == 100 * 8192


def test_more_buffers_than_one_call_takes(files: SlabFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    pwritev, preadv = os.pwritev, os.preadv
    monkeypatch.setattr(slab.os, "pwritev", lambda fd, v, at: counts.append(len(v)) or pwritev(fd, v, at))
    monkeypatch.setattr(slab.os, "preadv", lambda fd, v, at: counts.append(len(v)) or preadv(fd, v, at))
    name, leaves = SlabId(4, 0), [number.to_bytes(2, "big") * 10 for number in range(1500)]
    files.reserve(name, len(leaves))
    files.write(name, 0, leaves)
    files.sync(name)
    out = [bytearray(20) for _ in leaves]
    gaps = [bytearray(4096 - 20) for _ in leaves]
    files.read_into(name, 0, [memoryview(each) for pair in zip(out, gaps, strict=True) for each in pair])
    assert out == leaves
    assert not any(map(any, gaps))
    assert max(counts) == slab.MAX_VECTORS
    assert sum(counts) >= 6000


def test_short_reads_are_finished(files: SlabFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(slab.os, "preadv", lambda fd, v, at: preadv(fd, [v[0][:7]], at))
    name = SlabId(4, 0)
    files.reserve(name, 2)
    files.write(name, 0, [bytes(range(100)), b"next"])
    out = [bytearray(100), bytearray(3996), bytearray(0), bytearray(4)]
    files.read_into(name, 0, [memoryview(each) for each in out])
    assert (out[0], out[3]) == (bytes(range(100)), b"next")
    pread = os.pread
    monkeypatch.setattr(slab.os, "pread", lambda fd, size_bytes, at: pread(fd, min(size_bytes, 7), at))
    assert files.read_bytes(name, 0, 100) == bytes(range(100))


def test_reading_past_the_end_leaves_the_buffer(files: SlabFiles) -> None:
    name = SlabId(4, 0)
    target = bytearray(b"kept")
    files.read_into(name, 0, [memoryview(target)])  # no file at all
    assert files.read_bytes(name, 0, 4) == b""
    files.reserve(name, 1)
    files.read_into(name, 1 << 20, [memoryview(target)])
    assert target == b"kept"
    assert files.read_bytes(name, 4094, 4) == bytes(2)
    files.read_into(name, 0, [memoryview(target)])  # the control
    assert target == bytes(4)


def test_closing_twice_is_nothing(files: SlabFiles) -> None:
    files.reserve(SlabId(4, 0), 1)
    files.close()
    files.close()
