"""The power goes while something is written: what was acknowledged was synced, so it is there afterwards."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cyberkv.cybergraph.store import disk
from tests.faults import mounts, scenarios
from tests.faults.scenarios import SCENARIOS, Say
from tests.faults.syscalls import KILL, Ended, Fault, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SIZE_BYTES = 48 << 20


@dataclass(frozen=True)
class Cached:
    """Does a work with all writes through the page cache, as on a file system without O_DIRECT."""

    work: Callable[[Path, Say], None]

    def __call__(self, home: Path, say: Say) -> None:
        disk.takes_direct = lambda _: False
        self.work(home, say)


@pytest.mark.parametrize("cached", [False, True], ids=["direct", "cached"])
@pytest.mark.parametrize("name", ["create", "write", "delete", "fetch", "index", "gc", "evict"])
def test_a_cut_before_a_change(name: str, cached: bool, prepared: Path, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    work = Cached(scenario.work) if cached else scenario.work
    image = mounts.make_disk(tmp_path / "disk", SIZE_BYTES)
    with mounts.on_disk(image) as folder:
        shutil.copytree(prepared, folder / "home") if not scenario.fresh else (folder / "home").mkdir()
    sound = tmp_path / "sound"
    shutil.copyfile(image, sound)
    with mounts.on_disk(image) as folder:
        calls = len(run(work, folder / "home").calls)
    for number in range(1, calls, 2):
        shutil.copyfile(sound, image)
        with mounts.on_disk(image) as folder:

            def cut(ended: Ended, folder: Path = folder, number: int = number) -> Fault:
                if len(ended.calls) <= number:
                    return None
                mounts.cut_power(folder)
                return KILL

            ended = run(work, folder / "home", cut)
            assert ended.killed, number
        with mounts.on_disk(image) as folder:
            scenarios.check(folder / "home", scenario, ended.said)
            again = run(work, folder / "home")
            assert again.exit_code == 0, (number, again.said)
            scenarios.check(folder / "home", scenario, again.said)


def careless(home: Path, say: Say) -> None:
    (home / "note").write_bytes(bytes(100_000))
    say("written")
    (home / "more").mkdir()


def test_the_control(tmp_path: Path) -> None:
    """What was not synced is gone, so the cuts above do cut."""
    image = mounts.make_disk(tmp_path / "disk", SIZE_BYTES)
    with mounts.on_disk(image) as folder:

        def cut(ended: Ended) -> Fault:
            if ended.calls[-1].name != "mkdir":
                return None
            mounts.cut_power(folder)
            return KILL

        assert run(careless, folder, cut).said == ["written"]
        assert (folder / "note").exists()
    with mounts.on_disk(image) as folder:
        assert not (folder / "note").exists()
