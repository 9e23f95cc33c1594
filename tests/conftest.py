"""Settings and fixtures shared by every test, and the groups that the default command leaves out."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

# A shell has what it starts in the background ignore Ctrl-C, and so would programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch loads: with the default spinning, two threads on a busy machine run slower than one. Tests run on every
# core by themselves, and those about threads set their number.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all is imported, which gives nothing to collect

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from cyberkv.cybergraph.store.slab import takes_direct

DISK = Path(os.environ.setdefault("TMPDIR_OF_DISK", tempfile.gettempdir()))  # workers come to know it by that
MEMORY = Path("/dev/shm")  # noqa: S108
ROOM_BYTES = 8 << 30
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Of a container, in either form of control groups."""


def has_room(folder: Path) -> bool:
    """Say whether a folder in memory has room, and so does memory."""
    room_bytes = [shutil.disk_usage(folder).free, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")]
    for limit in LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number
            room_bytes.append(int((Path("/sys/fs/cgroup") / limit).read_text()))
    return min(room_bytes) >= ROOM_BYTES


def is_like_a_disk(folder: Path) -> bool:
    """Say whether a folder may be written to, has room, and takes the calls that are made on a disk."""
    with suppress(OSError):
        if has_room(folder):
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(bytes(4096))
                file.flush()
                return takes_direct(Path(file.name))
    return False


# Most of the time of tests that write would be a disk's syncs. What is about a disk takes `disk_path`.
if "TMPDIR" not in os.environ and is_like_a_disk(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# No deadline and no randomness: a test must not fail because the machine is busy, or only once.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

GROUPS = {
    "slow": "takes minutes or loads the real model: run with --slow, or `make slow`",
    "compat": "needs another implementation: run with --compat, or `make compat`",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for group, reason in GROUPS.items():
        parser.addoption(f"--{group}", action="store_true", help=f"also run the {group} group ({reason})")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for group, reason in GROUPS.items():
            if item.get_closest_marker(group) and not config.getoption(f"--{group}"):
                item.add_marker(pytest.mark.skip(reason=f"{group}: {reason}"))


def pytest_collection_finish() -> None:
    gc.freeze()  # some million objects that stay: nothing looks through them again until the end
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def disk_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=DISK) as path:
        yield Path(path)


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def disk_store(home: Path) -> Iterator[DiskStore]:
    with DiskStore(home / "store") as store:
        yield store


@pytest.fixture
def index(home: Path) -> Iterator[Index]:
    with Index(home / "index") as opened:
        yield opened
