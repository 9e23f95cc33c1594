"""The pages for people: links lead somewhere, nothing is left to fill in."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_fill_in(page: Path) -> None:
    assert re.findall(r"\b[A-Z]+_OUTPUT\b|\bTODO\b|\bTBD\b", page.read_text()) == []


def test_control_the_readme_is_a_page_with_links() -> None:
    assert re.search(r"\]\(docs/formats\.md\)", (ROOT / "README.md").read_text())
