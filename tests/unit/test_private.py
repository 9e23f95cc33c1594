"""Private files: what is written so is there after a power cut, under its name."""

import os
import stat
from pathlib import Path

import pytest

from cyberkv.cybergraph.private import make_private_folder, write_private


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, set[str]]]:
    """What was made durable: whether a folder was, and the names in it at that time."""
    seen: list[tuple[bool, set[str]]] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        seen.append((is_folder, set(os.listdir(fd)) if is_folder else set()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    return seen


def test_a_file_is_durable_by_its_name(tmp_path: Path, synced: list[tuple[bool, set[str]]]) -> None:
    write_private(tmp_path / "kept", [b"a", b"b"], sync=True)
    assert synced == [(False, set()), (True, {"kept"})]  # first what it holds, then what it is called
    write_private(tmp_path / "other", [b"c"], sync=False)
    assert len(synced) == 2  # control


def test_a_new_folder_is_durable_and_an_old_one_costs_nothing(
    tmp_path: Path, synced: list[tuple[bool, set[str]]]
) -> None:
    make_private_folder(tmp_path / "a" / "b")
    assert synced == [(True, {"a"}), (True, {"b"})]
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    make_private_folder(tmp_path / "a" / "b")
    assert len(synced) == 2
