"""Text from the command line, from a file, or from stdin."""

import sys
from pathlib import Path

import click

from ..cybergraph.errors import NotFound


def is_file(path: str | Path) -> bool:
    """Say whether a word of the command line names a file. One too long for a name does not."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def read_text(name: str) -> str:
    """Read a UTF-8 file, or stdin for `-`. Raises `NotFound`, or a usage error for other bytes."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise NotFound(
            f"cannot read {name:.200}: {error.strerror}", hint="give a text file, or - for stdin", path=name[:200]
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text: byte {error.start}") from error


def first_turn(prompt: str, system: str | None) -> list[dict[str, str]]:
    """Give the messages that open a conversation."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": prompt}]
