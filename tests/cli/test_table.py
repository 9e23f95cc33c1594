"""Every command of the table: it exists, explains itself, and costs nothing until it runs."""

import subprocess
import sys

import click
import pytest

from cyberkv.cli.commands import COMMANDS, FAMILIES
from cyberkv.cli.main import cli
from tests.cli.conftest import Command

HEAVY = {"torch", "numpy", "rich", "transformers", "tokenizers", "starlette"}


def load(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_line_is_the_commands_own(name: str) -> None:
    command = load(name)
    assert command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_and_subcommand_explains_itself(name: str, cyberkv: Command) -> None:
    command = load(name)
    paths = [[name]]
    if isinstance(command, click.Group):
        paths += [[name, each] for each in command.commands]
    for path in paths:
        for flag in ("-h", "--help"):
            page = cyberkv(*path, flag).stdout
            assert page.startswith(f"Usage: cyberkv {' '.join(path)}")
            assert "\n  -h, --help" in page


def test_the_help_page_lists_every_command_once_by_family(cyberkv: Command) -> None:
    page = cyberkv("-h").stdout
    for family, entries in FAMILIES.items():
        assert f"\n{family}:\n" in page
        for name in entries:
            assert page.count(f"\n  {name} ") == 1
    assert "130 interrupted" in " ".join(page.split())


def test_an_unknown_command_is_a_usage_error(cyberkv: Command) -> None:
    assert "nosuch" in cyberkv.error(2, "nosuch")["message"]


def test_help_loads_nothing_heavy() -> None:
    lines = [["--help"], *([name, "-h"] for name in COMMANDS)]
    script = f"""
import sys
from cyberkv.cli.main import cli
for line in {lines!r}:
    try:
        cli.main(line)
    except SystemExit as done:
        assert not done.code
    loaded = {HEAVY!r} & set(sys.modules)
    assert not loaded, (line, loaded)
    assert "lmdb" not in sys.modules or line != ["--help"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: cyberkv") == len(lines)
