"""A scrub finds what went bad, stays out of the way, and stops at once."""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.keeping import scrub as scrubbing
from cyberkv.cybergraph.keeping.quarantine import quarantine, quarantined
from cyberkv.cybergraph.keeping.scrub import Scrub
from cyberkv.cybergraph.store import DiskStore, Finding
from tests.contracts.disk import flip
from tests.contracts.synthetic import blocks, make_conversation

FAST = 1 << 40


class Told:
    """What a scrub said, and a way to wait for it."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.event = Event()

    def __call__(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.event.set()


def run_to_the_end(scrub: Scrub) -> None:
    """Start a scrub and wait for its first round."""
    scrub.start()
    while not scrub.done.rounds:
        Event().wait(0.001)
    scrub.close()


def test_damage_is_told_and_taken_out(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store, DiskStore(tmp_path, read_only=True) as reading:
        root = make_conversation(store, range(23))
        made = blocks(5)
        store.put_many(made)
        bad = [made[1][0], root]
        for cid in bad:
            flip(store, cid)
        told = Told()
        scrub = Scrub(reading, told, drop=lambda cid: bool(quarantine(store, [cid])), rate_bytes_s=FAST)
        run_to_the_end(scrub)
        assert {each.cid for each in told.findings} == set(bad)
        assert all(each.what == "block" and "do not hash" in each.reason for each in told.findings)
        assert store.missing([cid for cid, _ in made]) == [made[1][0]]
        assert scrub.done.damaged == 2
        assert scrub.done.blocks == len(list(store.cids())) + 2
        assert store.put_many(made) == 1  # a sound one takes its place
        again = Scrub(reading, told, rate_bytes_s=FAST)
        run_to_the_end(again)
        assert (again.done.damaged, len(told.findings)) == (0, 2)


def spoil(path: Path, how: str) -> Callable[[], object]:
    """Make all leaves of a store unreadable; give what puts that right."""
    slab = path / "slab-8-0.kvd"
    data = slab.read_bytes()
    if how == "gone":
        slab.rename(path / "away")
        return lambda: (path / "away").rename(slab)
    os.truncate(slab, 100)
    return lambda: slab.write_bytes(data)


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_what_cannot_be_read_is_told_once_and_left(tmp_path: Path, how: str) -> None:
    made = blocks(5)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
    with DiskStore(tmp_path) as store, DiskStore(tmp_path, read_only=True) as reading:
        put_back = spoil(tmp_path, how)
        told = Told()
        scrub = Scrub(reading, told, drop=lambda cid: bool(quarantine(store, [cid])), rate_bytes_s=FAST)
        run_to_the_end(scrub)
        assert scrub.done.damaged == 0
        assert len(told.findings) == 1  # one file, however many leaves it held
        assert {"gone": "is missing", "cut": "is cut short"}[how] in told.findings[0].reason
        assert list(quarantined(store)) == []
        put_back()
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        flip(store, made[2][0])  # the control
        told = Told()
        run_to_the_end(Scrub(reading, told, drop=lambda cid: bool(quarantine(store, [cid])), rate_bytes_s=FAST))
        assert [each.cid for each in told.findings] == [made[2][0]]
        assert store.missing([cid for cid, _ in made]) == [made[2][0]]


@pytest.mark.parametrize("lead", [0, 77, 255])
def test_a_round_begins_anywhere_and_comes_to_each_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: int
) -> None:
    with DiskStore(tmp_path) as store:
        make_conversation(store, range(23))
        store.put_many(blocks(600))
        some = next(cid.digest for cid in store.cids() if cid.codec == "raw")
        for start in (bytes([lead]) + bytes(31), bytes([lead]) + b"\xff" * 31, some):
            monkeypatch.setattr(scrubbing, "urandom", lambda _, start=start: start)
            met = list(Scrub(store, Told())._circle())
            assert sorted(met) == sorted(store.cids())
            leads = [(cid.digest[0] - start[0]) % 256 for cid in met if cid.digest[0] != start[0]]
            assert leads == sorted(leads)
            assert [cid for cid in met if cid.digest[0] == start[0] and cid.digest < start] == [
                cid for cid in met[-600:] if cid.digest[0] == start[0] and cid.digest < start
            ]
            assert next(cid for cid in met if cid.codec == "raw").digest >= start or lead == 255


def test_what_others_have_put_right_is_not_told(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store, DiskStore(tmp_path, read_only=True) as reading:
        made = blocks(3)
        store.put_many(made)
        flip(store, made[0][0])
        told = Told()

        def drop(cid: Cid) -> bool:
            store.missing([cid])
            store.delete_many([cid])
            store.put_many(made)
            return bool(quarantine(store, [cid]))

        run_to_the_end(Scrub(reading, told, drop=drop, rate_bytes_s=FAST))
        assert told.findings == []


def test_it_yields_to_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STEP_BYTES", 5000)
    with DiskStore(tmp_path) as store, DiskStore(tmp_path, read_only=True) as reading:
        store.put_many(blocks(50))
        uses, busy, asked = [0], [True], Event()

        def used() -> int:
            uses[0] += busy[0]
            if uses[0] > 100:
                asked.set()
            return uses[0]

        scrub = Scrub(reading, Told(), uses=used, rate_bytes_s=FAST)
        scrub.start()
        assert asked.wait(120)
        assert scrub.done.blocks <= 1  # it has asked a hundred times, and read nothing meanwhile
        busy[0] = False
        while not scrub.done.rounds:
            Event().wait(0.001)
        scrub.close()
        assert scrub.done.blocks == 50


@pytest.mark.parametrize("close", [lambda scrub: scrub.close(), lambda scrub: (scrub.close(), scrub.close())])
def test_it_stops_at_once_however_slow_it_is(tmp_path: Path, close: Callable[[Scrub], object]) -> None:
    with DiskStore(tmp_path) as store, DiskStore(tmp_path, read_only=True) as reading:
        store.put_many(blocks(1000, 8000))
        scrub = Scrub(reading, Told(), rate_bytes_s=1)  # a month for all of it
        scrub.start()
        close(scrub)
        assert scrub.done.rounds == 0
    Scrub(reading, Told()).close()  # one that was never started


def test_what_a_scrub_reads_does_not_count_as_used(tmp_path: Path) -> None:
    touched: list[object] = []
    with DiskStore(tmp_path, on_touch=touched.append) as store, DiskStore(tmp_path, read_only=True) as reading:
        store.put_many(blocks(5))
        before = len(touched)
        run_to_the_end(Scrub(reading, Told(), rate_bytes_s=FAST))
        assert len(touched) == before
        store.get(blocks(1)[0][0])
        assert len(touched) > before  # the control
