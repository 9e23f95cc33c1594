"""A file written around the page cache has the bytes that were given, whatever their sizes."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph import direct
from cyberkv.cybergraph.direct import DirectFile
from tests.conftest import DISK, MEMORY

PLACES = sorted({DISK, MEMORY if MEMORY.is_dir() else DISK})


@pytest.mark.parametrize("place", PLACES)
@given(sizes=st.lists(st.integers(0, 9000), max_size=30))
def test_what_is_written_is_there(place: Path, sizes: list[int]) -> None:
    data = [bytes([number % 251 + 1]) * size for number, size in enumerate(sizes)]
    with TemporaryDirectory(dir=place) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "PIECE_BYTES", 8192)
        path = Path(folder) / "file"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        with DirectFile(fd) as file:
            for start in range(0, len(data), 3):
                file.writelines(data[start : start + 3])
        os.write(fd, b"end")
        os.close(fd)
        assert path.read_bytes() == b"".join(data) + b"end"


def test_an_error_of_the_disk_reaches_the_caller(tmp_path: Path) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space"), DirectFile(fd) as file:
        file.writelines([bytes(3 * direct.PIECE_BYTES)])
    os.close(fd)
