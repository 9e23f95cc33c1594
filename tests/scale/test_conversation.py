"""100,000 blocks in one conversation: walked, exported, imported, forked and checked, iteratively, in little memory."""

from pathlib import Path

import pytest

from tests.scale.measure import MIB, in_child

FLAT_BYTES = 8 * MIB
STAGING_BYTES = 20 * MIB
"""What blocks and pages on their way to the disk take besides, in work that keeps anything."""
BYTES_PER_BLOCK = {
    "record": 1024, "missing": 256, "plan": 384, "export": 64, "rebuild": 1024, "fsck": 1024, "gc": 64, "import": 640,
    "import again": 96,
}  # fmt: skip
"""Most that is kept of a block: names and counts, never payload. Work that is not named keeps nothing.

Measured with 100,000 blocks, staging counted in: 917 bytes a block to record, 438 to import, 787 to make the index
anew, 788 to check, 322 to plan, 181 to list what is missing, 92 to import again, under 50 to export and to collect.
"""


@pytest.mark.parametrize("blocks", [5_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
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
        kept_bytes = STAGING_BYTES + blocks * BYTES_PER_BLOCK[name] if name in BYTES_PER_BLOCK else FLAT_BYTES
        assert peak_bytes < kept_bytes, name
