"""Slab files alone: sizes, alignment, growth, short and split calls."""

import errno
import fcntl
import os
from mmap import mmap
from pathlib import Path

import pytest

from cyberkv.cybergraph.store import slab
from cyberkv.cybergraph.store.slab import SlabFiles, SlabId, is_aligned, slot_kib, slots_per_slab, takes_direct
from tests.contracts.disk import is_in_memory


@pytest.fixture
def files(tmp_path: Path) -> SlabFiles:
    return SlabFiles(tmp_path, read_only=False, direct=False)


def pages(count: int, fill: int = 0) -> memoryview:
    """Page-aligned memory."""
    view = memoryview(mmap(-1, count * 4096))
    view[:] = bytes([fill]) * len(view)
    return view


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
    name, slots = SlabId(4, 0), [number.to_bytes(2, "big") * 2048 for number in range(1500)]
    files.reserve(name, len(slots))
    files.write(name, 0, [memoryview(each) for each in slots])
    files.sync(name)
    out = [bytearray(4096) for _ in slots]
    files.read_into(name, 0, [memoryview(each) for each in out])
    assert out == slots
    assert counts == [slab.MAX_VECTORS, 1500 - slab.MAX_VECTORS] * 2


def test_short_reads_are_finished(files: SlabFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(slab.os, "preadv", lambda fd, v, at: preadv(fd, [v[0][:7]], at))
    name = SlabId(4, 0)
    files.reserve(name, 2)
    files.write(name, 0, [memoryview(bytes(range(100)) + bytes(3996)), memoryview(b"next")])
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
    assert files.read_bytes(name, 0, 5000) == bytes(4096)
    files.read_into(name, 0, [memoryview(target)])  # the control
    assert target == bytes(4)


def test_what_is_aligned() -> None:
    whole = pages(3)
    assert is_aligned(whole)
    assert is_aligned(whole[4096:8192])
    assert not is_aligned(whole[4096:8191])  # not whole pages
    assert not is_aligned(whole[1:4097])
    assert not is_aligned(whole[:0])
    assert not is_aligned(whole.toreadonly())


class Calls:
    """Really calls `os.pwritev` or `os.preadv`, and notes whether around the page cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.direct: list[bool] = []
        self.refuse_direct = False
        self.most_bytes: int | None = None
        self._really = getattr(os, name)
        monkeypatch.setattr(slab.os, name, self)

    def __call__(self, fd: int, vectors: list[memoryview], offset: int) -> int:
        self.direct.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
        if self.direct[-1] and self.refuse_direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.most_bytes is None:
            return int(self._really(fd, vectors, offset))
        most_bytes, self.most_bytes = self.most_bytes, None
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # a kernel that stops anywhere, as one may at a full disk
        try:
            return int(self._really(again, [vectors[0][:most_bytes]], offset))
        finally:
            os.close(again)


@pytest.fixture
def direct(disk_path: Path) -> SlabFiles:
    (disk_path / "probe").touch()
    if not takes_direct(disk_path / "probe"):
        pytest.skip("this file system takes no O_DIRECT")
    files = SlabFiles(disk_path, read_only=False, direct=True)
    files.reserve(SlabId(4, 0), 4)
    return files


def test_aligned_buffers_go_around_the_page_cache(direct: SlabFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, reads = Calls(monkeypatch, "pwritev"), Calls(monkeypatch, "preadv")
    name, data = SlabId(4, 0), pages(4, 7)
    direct.write(name, 0, [data[:4096], data[4096:]])
    assert writes.direct == [True]
    for around in (True, False):
        out = pages(4)
        direct.read_into(name, 0, [out], direct=around)
        assert out == data
        assert reads.direct.pop() == around


@pytest.mark.parametrize("verb", ["pwritev", "preadv"])
def test_a_file_system_that_refuses_is_believed_for_good(
    direct: SlabFiles, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    name, data, out = SlabId(4, 0), pages(4, 7), pages(4)
    direct.write(name, 0, [data])
    calls = Calls(monkeypatch, verb)
    calls.refuse_direct = True
    for _ in range(2):
        direct.write(name, 0, [data])
        direct.read_into(name, 0, [out], direct=True)
        assert out == data
    assert calls.direct == [True, False, False]
    assert not direct.direct


@pytest.mark.parametrize("most_bytes", [1, 4095, 4096, 5000, 12_288])
def test_after_a_short_call_the_rest_follows(
    direct: SlabFiles, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    writes, reads = Calls(monkeypatch, "pwritev"), Calls(monkeypatch, "preadv")
    name, data, out = SlabId(4, 0), pages(4, 7), pages(4)
    writes.most_bytes = reads.most_bytes = most_bytes
    direct.write(name, 0, [data])
    direct.read_into(name, 0, [out], direct=True)
    assert out == data
    assert writes.direct == reads.direct == [True, most_bytes % 4096 == 0]
    assert direct.direct


def test_a_write_that_writes_nothing_is_an_error(files: SlabFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.reserve(SlabId(4, 0), 1)
    monkeypatch.setattr(slab.os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="nothing was written"):
        files.write(SlabId(4, 0), 0, [pages(1)])


def test_a_probe_of_what_is_not_there(tmp_path: Path) -> None:
    assert not takes_direct(tmp_path / "none")


def test_what_the_page_cache_holds(direct: SlabFiles, disk_path: Path) -> None:
    name = SlabId(4, 0)
    if direct.cached_bytes(name, 0, 8192) is None or is_in_memory(disk_path):
        pytest.skip("a kernel that does not say, or a file system that is all cache")
    direct.write(name, 0, [pages(4, 7)])
    assert direct.cached_bytes(name, 0, 4 * 4096) == 0
    direct.read_into(name, 4096, [pages(2)])
    assert (direct.cached_bytes(name, 0, 4 * 4096) or 0) >= 2 * 4096
    assert direct.cached_bytes(name, 4096, 8192) == 8192
    assert direct.cached_bytes(SlabId(8, 0), 0, 4096) is None  # no file


def test_closing_twice_is_nothing(files: SlabFiles) -> None:
    files.reserve(SlabId(4, 0), 1)
    files.close()
    files.close()
