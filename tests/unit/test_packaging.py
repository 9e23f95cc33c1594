"""What an installed copy holds: every folder with code."""

import configparser
from pathlib import Path

TOP = Path(__file__).parents[2]
ROOMS = ("cybergraph", "runtime", "cli", "benchmarks")


def test_every_folder_with_code_is_installed() -> None:
    settings = configparser.ConfigParser()
    settings.read(TOP / "setup.cfg")
    listed = settings["options"]["packages"].split()
    there = [path.parent for room in ROOMS for path in (TOP / room).rglob("__init__.py")]
    names = ["cyberkv." + ".".join(folder.relative_to(TOP).parts) for folder in there]
    assert sorted(listed) == sorted(names)
    code = {path.parent for room in ROOMS for path in (TOP / room).rglob("*.py")}
    assert code == set(there)
