"""Every example in every docstring runs, in every module of the three packages."""

import doctest
import importlib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
MODULES = {
    ".".join(("cyberkv", *path.relative_to(TOP).with_suffix("").parts)).removesuffix(".__init__"): path
    for package in ("cybergraph", "runtime", "cli")
    for path in sorted((TOP / package).rglob("*.py"))
    if path.name != "__main__.py"  # importing it runs the program
}
WITH_EXAMPLES = [name for name, path in MODULES.items() if ">>>" in path.read_text()]
TAUGHT = ["cid", "dagcbor", "car", "prefix", "identity", "chain"]


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", TAUGHT)
def test_control_modules_that_teach_by_example_have_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"cyberkv.cybergraph.{name}")).attempted >= 3
