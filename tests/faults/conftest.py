"""Homes to break, each a copy of one that was prepared once."""

import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from mmap import PAGESIZE
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

import pytest

from cyberkv.cybergraph.store.slab import takes_direct
from tests.faults import scenarios, syscalls
from tests.faults.scenarios import Scenario
from tests.faults.syscalls import Call

MakeHome = Callable[[Scenario], Path]


@dataclass(frozen=True)
class Choose:
    """Which of the calls to put a fault before: the last of each kind, or every one."""

    every: bool

    def __call__(self, calls: Sequence[Call]) -> list[int]:
        if self.every:
            return list(range(len(calls)))
        return sorted({call: number for number, call in enumerate(calls)}.values())


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared") / "home"
    scenarios.prepare(path)
    return path


@cache
def quick_folder() -> Path | None:
    """Where files are made and synced at once: in memory, if that takes O_DIRECT as a disk does; else None.

    No test here is about what a disk does: `mounts` makes those that are.
    """
    memory = Path("/dev/shm")  # noqa: S108
    if not memory.is_dir():
        return None
    with NamedTemporaryFile(dir=memory) as probe:
        probe.write(bytes(PAGESIZE))
        probe.flush()
        return memory if takes_direct(Path(probe.name)) else None


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    if quick_folder() is None:
        yield tmp_path
        return
    with TemporaryDirectory(dir=quick_folder()) as path:
        yield Path(path)


@pytest.fixture
def make_home(prepared: Path, quick_path: Path) -> MakeHome:
    numbers = count()

    def make(scenario: Scenario) -> Path:
        path = quick_path / f"home-{next(numbers)}"
        if scenario.fresh:
            path.mkdir()
        else:
            shutil.copytree(prepared, path)
        if scenario.before:
            scenario.before(path)
        return path

    return make


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
def chosen(request: pytest.FixtureRequest) -> Choose:
    return Choose(request.param)


@pytest.fixture(scope="session", autouse=True)
def system_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whether this machine lets one process decide over another's system calls."""
    if not syscalls.NUMBERS:
        pytest.skip(f"no table of system calls for {platform.machine()}")
    folder = tmp_path_factory.mktemp("probe")
    try:
        assert syscalls.run(scenarios.write, folder).said == ["new", "later"]
    except EOFError:
        pytest.skip("this machine does not let one process decide over another's system calls (seccomp)")
