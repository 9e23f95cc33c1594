"""docs/checklist.md names tests that exist, for every id it must cover."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checklist.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
NUMBERS: dict[str, list[str]] = {
    "G": [*map(str, range(1, 37)), *(f"37{part}" for part in "abcdef"), *map(str, range(38, 52))],
    "F": [*map(str, range(1, 37))],
    "M": [*map(str, range(1, 39))],
}
LATER = ["G48", "G50"]
COVERED = [each for part, numbers in NUMBERS.items() for number in numbers if (each := part + number) not in LATER]


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^(def |    def |class )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


@pytest.mark.parametrize("claim", COVERED)
def test_every_claim_has_a_row_with_a_test(claim: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| {claim} |")]
    assert len(rows) == 1
    assert "`tests/" in rows[0] or claim == "G51"


def test_rows_stand_in_order() -> None:
    rows = re.findall(r"^\| ([GFM]\d+[a-f]?) \|", PAGE, re.MULTILINE)
    assert [each for each in rows if each in COVERED] == COVERED


def test_control_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError):
        test_a_named_test_exists("tests/unit/test_checklist.py", "test_nothing_of_this_name")
