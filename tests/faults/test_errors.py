"""The disk refuses any one change to a file: an error that says so, and a process that goes on."""

import errno
import shutil
from itertools import product

import pytest

from tests.faults import scenarios
from tests.faults.conftest import Choose, MakeHome
from tests.faults.scenarios import SCENARIOS, Stubborn
from tests.faults.syscalls import Ended, Fault, at, run

CODES = (errno.EIO, errno.ENOSPC)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_error_at_every_change(name: str, make_home: MakeHome, chosen: Choose) -> None:
    """Where only some are chosen, a kind of change meets one of the errors, and the other in the next scenario."""
    scenario = SCENARIOS[name]
    home = make_home(scenario)
    whole = run(scenario.work, home)
    expected = scenarios.state(home)
    keep_open = not (scenario.fresh or scenario.alone)
    opening, once = (run(Stubborn(scenario.work, keep_open, n), make_home(scenario)).calls for n in (0, 1))
    failed = 0
    numbers = [len(opening) + each for each in chosen(once[len(opening) :])]
    turn = list(SCENARIOS).index(name)
    some = [(number, CODES[(turn + len("".join(once[number]))) % 2]) for number in numbers]
    for number, code in product(numbers, CODES) if chosen.every else some:
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
