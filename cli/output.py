"""Answers: one JSON object on stdout, or the same for a person. Never both, and nothing else on stdout.

Lines are printed with click, which costs nothing at start; tables and progress bars are drawn with rich.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import click

from ..cybergraph.cid import Cid
from .context import Session
from .text import plain

if TYPE_CHECKING:
    from rich.console import Console

Data = Mapping[str, object]


def answer(session: Session, data: Data, show: Callable[[], None]) -> None:
    """Give the one answer of a command: `data` with `--json`, else what `show` prints."""
    if session.as_json:
        line(data)
    else:
        show()


def line(data: Data) -> None:
    """Print one JSON object of a stream."""
    print(json.dumps(data, default=_json_value), flush=True)


def remark(session: Session, text: str) -> None:
    """Say something beside the answer, on stderr, unless the user wants quiet."""
    if not session.quiet:
        click.echo(plain(text), err=True)


def say(text: str, *, bold: bool = False, dim: bool = False, fg: str | None = None) -> None:
    """Print a line, control characters made harmless."""
    click.secho(plain(text), bold=bold or None, dim=dim or None, fg=fg)


def facts(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; a value is never cut or broken. None is left out."""
    pairs = [(name, str(value)) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.secho(name.ljust(width), dim=True, nl=False)
        say(f"  {value}")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A column whose name starts with `>` is aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        grid.add_column(name.removeprefix(">"), justify="right" if name[0] == ">" else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain(str(value))) for value in row))
    console().print(grid)


def console(*, stderr: bool = False) -> "Console":
    """Build a rich console. Piped output is as wide as it needs to be."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        color_system=None if click.get_current_context().color is False else "auto",
        width=None if stream.isatty() else 1000,
    )


def _json_value(value: object) -> object:
    if isinstance(value, Cid):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    return str(value)
