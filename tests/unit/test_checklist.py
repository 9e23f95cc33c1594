"""docs/checklist.md names tests that exist, for every id it must cover."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checklist.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
COVERED = [
    "G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10", "G11", "G12", "G13", "G14", "G15", "G17", "G18",
    "G19", "G20", "G21", "G22", "G23", "G24", "G25", "G27", "G28", "G29", "G30", "G31", "G32", "G33", "G34", "G35",
    "G36", "G37b", "G39", "G40", "G46", "G47", "G49", "G51", "F2", "F3", "F29", "F30", "F35", "M15", "M28", "M32",
    "M33", "M34", "M35", "M36", "M38",
]  # fmt: skip


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^(def |    def |class )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


@pytest.mark.parametrize("claim", COVERED)
def test_every_claim_has_a_row_with_a_test(claim: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| {claim} |")]
    assert len(rows) == 1
    assert "`tests/" in rows[0] or claim == "G51"


def test_control_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError):
        test_a_named_test_exists("tests/unit/test_checklist.py", "test_nothing_of_this_name")
