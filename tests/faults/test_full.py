"""Disks that are full or give errors, as the kernel has them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import DigestMismatch, TierFull
from cyberkv.cybergraph.store import DiskStore
from tests.contracts.synthetic import blocks
from tests.faults import mounts
from tests.faults.conftest import MakeHome
from tests.faults.scenarios import NEW, OLD, SCENARIOS, opened

SIZE_BYTES = 64 << 20
LEAF_BYTES, SLOT_BYTES = 60_000, 60 << 10


@contextmanager
def _in_memory(_: Path) -> Iterator[Path]:
    with mounts.in_memory(SIZE_BYTES) as folder:
        yield folder


@contextmanager
def _on_disk(tmp_path: Path) -> Iterator[Path]:
    with mounts.on_disk(mounts.make_disk(tmp_path / "disk", SIZE_BYTES)) as folder:
        yield folder


def _fill(store: DiskStore, made: list[tuple[Cid, bytes]]) -> int:
    """Put blocks in small batches until there is no room, and say how many were acknowledged."""
    done = 0
    try:
        while done < len(made):
            store.put_many(made[done : done + 10])
            done += 10
    except TierFull:
        return done
    return done


def _waste(folder: Path) -> None:
    """Let somebody else take most of what was left."""
    free_bytes = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "other").write_bytes(bytes(max(0, free_bytes - (2 << 20))))


@pytest.mark.parametrize("made_on", [_in_memory, _on_disk])
def test_a_small_file_system_that_fills_up(made_on: "type[_on_disk]", tmp_path: Path) -> None:
    made = blocks(1200, LEAF_BYTES)
    with made_on(tmp_path) as folder:
        with DiskStore(folder / "store") as store:
            done = _fill(store, made)
            # The room was used, but for what the catalogue may need: a file that cannot double still grows.
            assert 0.5 * SIZE_BYTES < done * SLOT_BYTES < SIZE_BYTES
            here = [cid for cid, _ in made if store.has(cid)]
            assert here == [cid for cid, _ in made[:done]]
            assert all(store.get(cid) == data for cid, data in made[:done])
            assert list(store.check()) == []
        _waste(folder)
        with DiskStore(folder / "store") as store:
            # Room can be made on a full disk, and used.
            assert store.delete_many(cid for cid, _ in made[:100]) == 100
            store.put_many(made[done : done + 90])
            kept = made[100 : done + 90]
            assert sorted(store.cids()) == sorted(cid for cid, _ in kept)
            assert all(store.get(cid) == data for cid, data in kept)
            assert list(store.check()) == []


def test_a_slab_whose_every_read_is_an_error(make_home: MakeHome) -> None:
    """The memory of a process, as a file, gives input/output errors where nothing is mapped."""
    home = make_home(SCENARIOS["write"])
    with opened(home) as (store, _):
        store.put_many(NEW)
    slab = home / "store/slab-8-0.kvd"
    slab.rename(home / "aside")
    slab.symlink_to("/proc/self/mem")
    with opened(home) as (store, _):
        for cid, _ in OLD[1:3]:
            with pytest.raises(DigestMismatch, match="slab-8-0"):
                store.get(cid)
            with pytest.raises(DigestMismatch):
                store.get_into([cid], [memoryview(bytearray(5000))])
        assert all(store.get(cid) == data for cid, data in NEW if len(data) > 8192)  # another slab
        assert store.put_many([OLD[0]]) == 1  # not into that one
    slab.unlink()
    (home / "aside").rename(slab)
    with opened(home) as (store, _):
        assert all(store.get(cid) == data for cid, data in OLD)
        assert list(store.check()) == []


@pytest.mark.slow
def test_a_disk_that_loses_its_end(tmp_path: Path) -> None:
    """Sectors that cannot be read: each block is right or said to be damaged, and what was lost can be stored again."""
    made = blocks(300, LEAF_BYTES)
    disk = mounts.make_disk(tmp_path / "disk", SIZE_BYTES)
    store_path, slab = tmp_path / "store", "slab-60-0.kvd"
    with DiskStore(store_path) as store:
        store.put_many(made)
    with mounts.on_disk(disk) as folder:
        shutil.move(store_path / slab, folder / slab)
        os.sync()
        os.truncate(disk, SIZE_BYTES // 4)
        (store_path / slab).symlink_to(folder / slab)
        with DiskStore(store_path, read_only=True) as store:
            _drop_cache(folder / slab)
            lost = [cid for cid, data in made if not _is_right(store, cid, data)]
        assert 0 < len(lost) < len(made)
    (store_path / slab).unlink()
    with DiskStore(store_path) as store:  # on a new disk, with nothing of that slab
        assert not any(_is_right(store, cid, data) for cid, data in made)
        assert store.put_many(made) == len(made)
        assert all(store.get(cid) == data for cid, data in made)


def _is_right(store: DiskStore, cid: Cid, data: bytes) -> bool:
    try:
        assert store.get(cid) == data
    except DigestMismatch:
        return False
    return True


def _drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
