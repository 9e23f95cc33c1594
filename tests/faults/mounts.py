"""Small or stubborn file systems, where this machine lets a test mount them; else it is skipped with the reason."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Final

import pytest

_SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
_WITHOUT_FLUSH: Final = 2


def _run(*command: object) -> None:
    try:
        subprocess.run([str(each) for each in command], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not installed")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine does not let a test mount: {error.stderr.strip()}")


@contextmanager
def _mounted(*options: object) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        _run("mount", *options, folder)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        folder.rmdir()


@contextmanager
def in_memory(size_bytes: int) -> Iterator[Path]:
    """A file system in memory: O_DIRECT, where the kernel takes it there, goes around nothing."""
    with _mounted("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs") as folder:
        yield folder


@contextmanager
def on_disk(disk: Path) -> Iterator[Path]:
    """The ext4 file system in a file, which stands for the disk."""
    with _mounted("-o", "loop", disk) as folder:
        yield folder


def make_disk(disk: Path, size_bytes: int) -> Path:
    """Make an empty file system in a file."""
    with disk.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", disk)
    return disk


def cut_power(folder: Path) -> None:
    """End a file system without another byte to its disk: what was not synced is gone. It must be mounted anew."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        ioctl(fd, _SHUTDOWN, _WITHOUT_FLUSH.to_bytes(4, "little"))
    finally:
        os.close(fd)


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The same folder, mounted a second time so that it takes no writes."""
    with _mounted("--bind", folder) as second:
        _run("mount", "-o", "remount,ro,bind", second)
        second.parent.chmod(second.parent.stat().st_mode | 0o111)
        yield second
