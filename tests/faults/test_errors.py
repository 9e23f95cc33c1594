"""The disk refuses any one change to a file: an error that says so, and a process that goes on."""

import errno
import shutil

import pytest

from tests.faults import scenarios
from tests.faults.conftest import Choose, MakeHome
from tests.faults.scenarios import SCENARIOS, Stubborn
from tests.faults.syscalls import Ended, Fault, at, run


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["io-error", "full"])
def test_an_error_at_every_change(name: str, code: int, make_home: MakeHome, chosen: Choose) -> None:
    scenario = SCENARIOS[name]
    home = make_home(scenario)
    whole = run(scenario.work, home)
    expected = scenarios.state(home)
    keep_open = not (scenario.fresh or scenario.alone)
    opening, once = (run(Stubborn(scenario.work, keep_open, n), make_home(scenario)).calls for n in (0, 1))
    failed = 0
    numbers = [len(opening) + each for each in chosen(once[len(opening) :])]
    for number in numbers:
        home = make_home(scenario)
        ended = run(Stubborn(scenario.work, keep_open), home, at(number, code))
        where = (number, once[number], ended.said)
        assert ended.exit_code == 0, where
        parted = ended.said.index("again")
        assert ended.said[parted + 1 :] == whole.said, where
        if (how := ended.said[:parted]) != whole.said:  # some calls may fail without harm
            failed += 1
            assert how[-1] == ("full" if code == errno.ENOSPC else "error", True), where
        scenarios.check(home, scenario, ended.said)
        assert scenarios.state(home) == expected, where
        shutil.rmtree(home)
    assert failed > 2  # else the calls that matter were not met


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_disk_that_stays_full(name: str, make_home: MakeHome, chosen: Choose) -> None:
    """From some change on nothing can be written, until the work gave up: then there is room again."""
    scenario = SCENARIOS[name]
    whole = run(scenario.work, make_home(scenario))
    for number in chosen(whole.calls)[::2]:
        home = make_home(scenario)

        def full(ended: Ended, number: int = number) -> Fault:
            return errno.ENOSPC if len(ended.calls) > number and "again" not in ended.said else None

        ended = run(Stubborn(scenario.work, keep_open=False), home, full)
        assert ended.exit_code == 0, (number, whole.calls[number], ended.said)
        parted = ended.said.index("again")
        harmless = ended.said[:parted] == whole.said  # as when only the order of use was not written down
        assert harmless or ended.said[parted - 1] == ("full", True), (number, whole.calls[number], ended.said)
        assert ended.said[parted + 1 :] == whole.said
        scenarios.check(home, scenario, ended.said)
        shutil.rmtree(home)
