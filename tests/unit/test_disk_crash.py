"""Kills, full disks, forks and many processes: nothing half visible, nothing lost."""

import resource
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from cyberkv.cybergraph.errors import (
    TierFull,
)
from cyberkv.cybergraph.store import DiskStore, slab
from cyberkv.cybergraph.store.disk import STEPS
from tests.contracts.disk import in_child
from tests.contracts.synthetic import blocks, make_model

WRITE_STEPS = [step for step in STEPS if not step.startswith("remov")]


@pytest.mark.parametrize("step", WRITE_STEPS)
def test_a_kill_at_each_step_leaves_nothing_half_visible(tmp_path: Path, step: str) -> None:
    made = blocks(8)
    with DiskStore(tmp_path) as store:
        store.put_many(made[:3])
        store.delete_many([made[0][0]])  # so that the write also takes a freed slot
    child = in_child(
        """
        seen = []
        def on_step(step):
            seen.append(step)
            if step == args[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        store = DiskStore(path, on_step=on_step)
        store.put_many([(make_model().cid(), make_model().encode()), *blocks(8)])
        """,
        tmp_path, step,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    with DiskStore(tmp_path) as store:
        acknowledged = step == "committed"
        new = [made[0], *made[3:]]
        assert [store.has(cid) for cid, _ in new] == [acknowledged] * len(new)
        assert store.has(make_model().cid()) == acknowledged
        assert len(list(store.cids())) == (9 if acknowledged else 2)
        assert [store.get(cid) for cid, _ in made[1:3]] == [data for _, data in made[1:3]]
        assert list(store.check()) == []
        # A restart heals by itself: the same write simply goes through.
        assert store.put_many(made) == (0 if acknowledged else len(new))
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert list(store.check()) == []


@pytest.mark.parametrize("step", ["removing", "removed"])
def test_a_kill_while_deleting(tmp_path: Path, step: str) -> None:
    made = blocks(6)
    with DiskStore(tmp_path) as store:
        store.put_many(made[:4])
    child = in_child(
        """
        store = DiskStore(path, on_step=lambda step: step == args[0] and os.kill(os.getpid(), signal.SIGKILL))
        store.delete_many(cid for cid, _ in blocks(2))
        """,
        tmp_path, step,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    with DiskStore(tmp_path) as store:
        assert [store.has(cid) for cid, _ in made[:4]] == [step == "removing"] * 2 + [True] * 2
        assert store.put_many(made) == (2 if step == "removing" else 4)
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert list(store.check()) == []


def test_steps_are_told_in_their_order(tmp_path: Path) -> None:
    told: list[str] = []
    with DiskStore(tmp_path, on_step=told.append) as store:
        store.put_many(blocks(3))
        store.delete_many([blocks(1)[0][0]])
    assert told == list(STEPS)


def test_an_error_at_each_step_leaves_nothing_visible(tmp_path: Path) -> None:
    made = blocks(3)
    for step in WRITE_STEPS[:-1]:

        def fail(seen: str, step: str = step) -> None:
            if seen == step:
                raise OSError(28, "No space left on device")

        with DiskStore(tmp_path, on_step=fail) as store:
            with pytest.raises(OSError, match="No space"):
                store.put_many(made)
            assert list(store.cids()) == []
    with DiskStore(tmp_path) as store:
        assert store.put_many(made) == 3


def test_a_full_disk_is_said_and_nothing_is_half_stored(tmp_path: Path) -> None:
    child = in_child(
        """
        from cyberkv.cybergraph.errors import TierFull
        store = DiskStore(path)
        store.put_many(blocks(10))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            store.put_many(blocks(400))
        except TierFull as error:
            assert error.exit_code == 8 and error.hint
            assert len(list(store.cids())) == 10
            store.put_many(blocks(20))
            assert list(store.check()) == []
            print("full")
        """,
        tmp_path,
    )  # fmt: skip
    assert child.stdout == "full\n", child.stderr
    with DiskStore(tmp_path) as store:
        assert store.missing(cid for cid, _ in blocks(20)) == []
        assert store.put_many(blocks(400)) == 380


def test_a_full_disk_at_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with DiskStore(tmp_path) as store:
        monkeypatch.setattr(slab.os, "fdatasync", fail)
        with pytest.raises(TierFull):
            store.put_many(blocks(3))
        assert list(store.cids()) == []
        monkeypatch.undo()
        assert store.put_many(blocks(3)) == 3


def test_a_store_is_not_used_across_a_fork(tmp_path: Path) -> None:
    child = in_child(
        """
        from cyberkv.cybergraph.errors import CyberKVError
        store = DiskStore(path)
        if os.fork() == 0:
            for attempt in (lambda: store.has(make_model().cid()), lambda: DiskStore(path)):
                try:
                    attempt()
                except CyberKVError as error:
                    assert "fork" in error.message
                    print("refused", flush=True)
            os._exit(0)
        os.wait()
        store.put_node(make_model())
        """,
        tmp_path,
    )  # fmt: skip
    assert child.stdout == "refused\nrefused\n", child.stderr
    assert child.returncode == 0, child.stderr


def test_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    made = blocks(120)
    code = """
        store = DiskStore(path)
        part = blocks(120)[int(args[0]) :: 3]
        for at in range(0, len(part), 4):
            store.put_many(part[at : at + 4])
            store.put_many(part[:at])
    """
    children = [threading.Thread(target=lambda n=n: results.append(in_child(code, tmp_path, n))) for n in (0, 1)]
    results: list[subprocess.CompletedProcess[str]] = []
    with DiskStore(tmp_path) as store:
        for child in children:
            child.start()
        threads = [threading.Thread(target=store.put_many, args=(made[start::6],)) for start in (2, 5)]
        for thread in [*threads, *children]:
            if thread in threads:
                thread.start()
        for thread in [*threads, *children]:
            thread.join()
        assert [(each.returncode, each.stderr) for each in results] == [(0, "")] * 2
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert len(list(store.cids())) == 120
        assert list(store.check()) == []


def test_file_size_limit_is_per_process() -> None:
    """The limit set in a child above must not have leaked here, or the other tests prove nothing."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20
