"""Folders and files without permission: an error of this project, and nothing is taken for damaged that is not."""

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cyberkv.cybergraph.errors import CyberKVError
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.repair import repair
from cyberkv.cybergraph.store import DiskStore
from tests.faults import mounts, scenarios
from tests.faults.scenarios import NEW, OLD, Say, opened
from tests.faults.syscalls import run

NOBODY = 65534


@pytest.fixture
def home(prepared: Path) -> Iterator[Path]:
    """A home of somebody who is bound by permissions, which the superuser is not."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    path = top / "home"
    shutil.copytree(prepared, path)
    if os.geteuid() == 0:
        for each in [path, *path.rglob("*")]:
            os.chown(each, NOBODY, NOBODY)
    yield path
    for each in [path, *path.rglob("*")]:
        each.chmod(0o700)
    shutil.rmtree(top)


@dataclass(frozen=True)
class AsNobody:
    """Does a work as a user without privileges and says how it went."""

    work: Callable[[Path], object]

    def __call__(self, home: Path, say: Say) -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            with TemporaryDirectory() as spare, DiskStore(Path(spare) / "store"), Index(Path(spare) / "index"):
                pass  # imports what is imported late: nobody may not enter a checkout that only its owner may
            os.setuid(NOBODY)
        try:
            say(("done", self.work(home)))
        except CyberKVError as error:
            say((error.kind, bool(error.hint)))


def read(home: Path) -> int:
    with DiskStore(home / "store", read_only=True) as store:
        return sum(store.get(cid) == data for cid, data in OLD[1:])


def read_at_once(home: Path) -> bool:
    with DiskStore(home / "store", read_only=True) as store:
        out = [bytearray(len(data)) for _, data in OLD[1:]]
        store.get_into([cid for cid, _ in OLD[1:]], [memoryview(each) for each in out])
        return out == [data for _, data in OLD[1:]]


def write(home: Path) -> int:
    with DiskStore(home / "store") as store:
        return store.put_many(NEW)


def mend(home: Path) -> list[object]:
    with opened(home) as (store, index):
        return list(repair(store, index, list(fsck(store, index))).dropped)


def names(home: Path) -> int:
    with Index(home / "index", make=False, read_only=True) as index:
        return len(index.heads())


def how(work: Callable[[Path], object], home: Path) -> object:
    ended = run(AsNobody(work), home)
    assert ended.exit_code == 0, ended
    return ended.said[0]


def lock(home: Path, pattern: str, mode: int) -> None:
    for each in [home] if pattern == "." else home.glob(pattern):
        each.chmod(mode)


def test_the_control(home: Path) -> None:
    for work, right in ((names, 0), (read, 11), (read_at_once, True), (mend, []), (write, len(NEW))):
        assert how(work, home) == ("done", right)


def test_a_folder_that_takes_no_new_file(home: Path) -> None:
    lock(home, "store", 0o555)
    assert how(read, home) == ("done", 11)
    assert how(write, home) == ("error", True)
    lock(home, "store", 0o755)
    assert how(read, home) == ("done", 11)
    assert how(write, home) == ("done", len(NEW))


@pytest.mark.parametrize(
    ("pattern", "mode"),
    [("store/*.kvd", 0), ("store/catalog", 0), ("store/catalog/data.mdb", 0), ("store/FORMAT", 0), ("store", 0)],
)
def test_what_may_not_be_read(home: Path, pattern: str, mode: int) -> None:
    before = {path: path.stat().st_mode for path in home.glob(pattern)}
    lock(home, pattern, mode)
    for work in (read, read_at_once, write, mend):
        assert how(work, home) == ("error", True), work
    for path, old in before.items():
        path.chmod(old)
    # Nothing was taken for damaged meanwhile.
    assert how(mend, home) == ("done", [])
    assert how(read, home) == ("done", 11)
    assert how(write, home) == ("done", len(NEW))


def test_what_may_not_be_written(home: Path) -> None:
    lock(home, "store/*.kvd", 0o444)
    assert how(write, home) == ("error", True)
    assert how(read, home) == ("done", 11)


def test_a_medium_that_takes_no_writes(home: Path) -> None:
    with mounts.read_only(home) as mounted:
        assert how(read, mounted) == ("done", 11)
        assert how(names, mounted) == ("done", 0)
        assert how(write, mounted) == ("error", True)


def few_files(home: Path) -> list[object]:
    """Open a store, then leave room for no further file, then read it and write to it."""
    found: list[object] = []
    with DiskStore(home / "store") as store:
        used = len(list(Path("/proc/self/fd").iterdir())) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
        for work in (lambda: store.get(OLD[1][0]) == OLD[1][1], lambda: store.put_many(NEW)):
            try:
                found.append(work())
            except CyberKVError as error:
                found.append(error.kind)
        found.append(store.has(OLD[1][0]))
    return found


def test_too_many_open_files(home: Path) -> None:
    assert how(few_files, home) == ("done", ["error", "error", True])
    assert how(read, home) == ("done", 11)
    assert scenarios.state(home)[0] >= {cid for cid, _ in OLD[1:]}
