"""A store of a million small blocks opens, answers and lists in little memory."""

from pathlib import Path

import pytest

from tests.scale.measure import MIB, in_child

FLAT_BYTES = 8 * MIB
COMMIT_BYTES = {"fill": 96 * MIB, "delete": 32 * MIB}
"""What pages that wait for a commit take; measured with a million blocks: 65 MiB and 16 MiB."""
BYTES_PER_BLOCK = {"check": 64}
"""What may be kept of a block: a check measured 36 bytes, other work keeps nothing."""


@pytest.mark.parametrize(
    "blocks", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_many_small_blocks(tmp_path: Path, blocks: int) -> None:
    filled = in_child("many_blocks", "fill", blocks, tmp_path / "store")
    assert filled["new"] == blocks
    found = in_child("many_blocks", "look", blocks, tmp_path / "store")
    peaks = {**filled["peak_bytes"], **found.pop("peak_bytes")}
    asked = found.pop("asked")
    assert found == {
        "has": asked, "has_absent": 0, "wrong": 0, "listed": blocks, "prefixed": 1, "findings": 0,
        "deleted": asked, "again": asked,
    }  # fmt: skip
    for name, peak_bytes in peaks.items():
        print(f"{name}: {peak_bytes / MIB:.1f} MiB for {blocks} blocks")
        assert peak_bytes < COMMIT_BYTES.get(name, FLAT_BYTES) + blocks * BYTES_PER_BLOCK.get(name, 0), name
