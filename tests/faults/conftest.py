"""Homes to break, each a copy of one that was prepared once."""

import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

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


@pytest.fixture
def make_home(prepared: Path, tmp_path: Path) -> MakeHome:
    numbers = count()

    def make(scenario: Scenario) -> Path:
        path = tmp_path / f"home-{next(numbers)}"
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
