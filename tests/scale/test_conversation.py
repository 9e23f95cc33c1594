"""100,000 blocks in one conversation: walked, exported, imported, forked and checked, iteratively, in little memory."""

from pathlib import Path

import pytest

from tests.scale.measure import MIB, in_child

CONSTANT = {"walk", "fork"}
"""Work that keeps nothing of what it has passed."""
BYTES_PER_BLOCK = 2048
"""Most that other work may keep of a block: names and counts, never payload."""


@pytest.mark.parametrize("blocks", [10_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_long_conversation(tmp_path: Path, blocks: int) -> None:
    found = in_child("long_conversation", blocks, tmp_path)
    peaks = found.pop("peak_bytes")
    segments = -(-blocks // 256)
    everything = 2 + segments + 2 * blocks
    forked = 2 if blocks // 2 % 256 else 1  # root and cut segment: nothing else is copied
    assert found == {
        "walked": blocks, "missing": 0, "planned": everything, "shared": blocks // 2, "forked": blocks // 2,
        "new_by_fork": forked, "collected": forked, "kept": everything,
        "indexed": blocks, "findings": 0, "imported": everything, "had": 0, "imported_again": 0, "missing_there": 0,
    }  # fmt: skip
    for name, peak_bytes in peaks.items():
        print(f"{name}: {peak_bytes / MIB:.1f} MiB for {blocks} blocks")
        assert peak_bytes < (8 * MIB if name in CONSTANT else 64 * MIB + blocks * BYTES_PER_BLOCK), name
