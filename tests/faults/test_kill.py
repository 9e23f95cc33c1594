"""A process that is killed before any change to a file: nothing acknowledged is lost, nothing wrong is served."""

import ctypes
import os
import shutil
from mmap import PAGESIZE, mmap
from pathlib import Path

import pytest

from tests.faults import scenarios
from tests.faults.conftest import Choose, MakeHome
from tests.faults.scenarios import SCENARIOS, Say
from tests.faults.syscalls import KILL, Call, at, run


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_before_every_change(name: str, make_home: MakeHome, chosen: Choose) -> None:
    scenario = SCENARIOS[name]
    home = make_home(scenario)
    whole = run(scenario.work, home)
    assert whole.exit_code == 0
    scenarios.check(home, scenario, whole.said)
    expected = scenarios.state(home)
    assert len(whole.calls) > 5
    for number in chosen(whole.calls):
        home = make_home(scenario)
        ended = run(scenario.work, home, at(number, KILL))
        assert ended.killed, (number, whole.calls[number])
        assert ended.said == whole.said[: len(ended.said)]
        scenarios.check(home, scenario, ended.said)
        # A restart heals by itself: the same work goes through and gives the same home.
        again = run(scenario.work, home)
        assert (again.exit_code, again.said) == (0, whole.said)
        scenarios.check(home, scenario, again.said)
        assert scenarios.state(home) == expected
        shutil.rmtree(home)


@pytest.mark.parametrize("name", ["create", "write", "delete", "evict"])
def test_a_slab_is_synced_before_the_catalogue_names_what_is_in_it(name: str, make_home: MakeHome) -> None:
    """A kill does not show this, because the kernel lives on and writes what it was given.

    The same holds for the name of a new slab in its folder.
    """
    unsynced: set[str] = set()
    written = made = 0
    for call in run(SCENARIOS[name].work, make_home(SCENARIOS[name])).calls:
        if call == Call("fsync", "store"):
            unsynced.discard("store")
        if call.file_name.endswith(".kvd"):
            if call.name == "openat":
                unsynced.add("store")
                made += 1
            elif call.name.startswith("pwrite"):
                unsynced.add(call.file_name)
                written += 1
            elif call.name in ("fsync", "fdatasync"):
                unsynced.discard(call.file_name)
        assert not (call.file_name == "data.mdb" and unsynced), call
    assert written
    assert made or name != "create"


def test_the_kills_reach_every_kind_of_change(make_home: MakeHome) -> None:
    """The control: slabs, the catalogue, the index and a CAR file are all written under the eyes of the faults."""
    calls: set[Call] = set()
    for scenario in SCENARIOS.values():
        calls |= set(run(scenario.work, make_home(scenario)).calls)
    assert any(call.file_name.endswith(".kvd") and call.name.startswith("pwrite") for call in calls)
    assert Call("fdatasync", "data.mdb") in calls
    assert any(call.file_name.endswith(".part") and call.name == "fsync" for call in calls)
    assert any(call.name.startswith("rename") for call in calls)


def make_across_pages(folder: Path, _: Say) -> None:
    """Make files whose paths begin in one page of memory and end in the next."""
    make = ctypes.CDLL(None).open
    with mmap(-1, 2 * PAGESIZE) as memory:
        for before_bytes in range(1, len(path := bytes(folder / "0"))):
            path = bytes(folder / str(before_bytes)) + b"\0"
            at = PAGESIZE - before_bytes
            memory[at : at + len(path)] = path
            view = ctypes.c_char.from_buffer(memory, at)
            os.close(make(ctypes.byref(view), os.O_CREAT | os.O_WRONLY, 0o600))
            del view


def test_no_change_is_overlooked_wherever_its_path_lies(tmp_path: Path) -> None:
    ended = run(make_across_pages, tmp_path)
    assert ended.exit_code == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert len(made) == len(bytes(tmp_path / "0")) - 1
    assert [call.file_name for call in ended.calls] == sorted(made, key=int)
