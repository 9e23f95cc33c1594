"""Options that several commands share."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .context import default_home

LISTEN = "127.0.0.1:8480"
"""Where `serve` listens unless it is told otherwise."""


class Ref(click.ParamType[str]):
    """The name of a conversation, a CID, or its unique beginning; names are completed by the shell."""

    name = "ref"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """List the names of this home that begin with what was typed."""
        home = ctx.find_root().params.get("home") or default_home()
        if not (home / "index").is_dir():
            return []
        from ..cybergraph.index import Index

        with Index(home / "index", make=False) as index:
            return [CompletionItem(head.name) for head in index.heads() if head.name.startswith(incomplete)]


REF = Ref()


class Text(click.ParamType[str]):
    """Words of a person: any Unicode text, and not the bytes of another encoding."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what Python could not read as UTF-8."""
        try:
            value.encode()
        except UnicodeEncodeError as error:
            self.fail(f"not UTF-8 text: character {error.start}", param, ctx)
        return value


TEXT = Text()

_SIZE = re.compile(r"([0-9]{1,64}(?:\.[0-9]{1,64})?) ?(?:([KMGT])iB|B)?")


def parse_size(text: str) -> int | None:
    """Read a number of bytes, or None for what is no size.

    >>> [parse_size(text) for text in ("1.5KiB", "20 GiB", "7", "7B", "7 kB")]
    [1536, 21474836480, 7, 7, None]
    """
    found = _SIZE.fullmatch(text)
    return None if found is None else int(Fraction(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


class Size(click.ParamType[int]):
    """A size in bytes or binary units."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a size."""
        size_bytes = parse_size(str(value))
        if size_bytes is None:
            self.fail("write a number of bytes, or one with KiB, MiB, GiB or TiB", param, ctx)
        return size_bytes


SIZE = Size()


class FiniteRange(click.FloatRange):
    """Numbers of a range, without infinity and without what is no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


POSITIVE = FiniteRange(min=0, min_open=True)
BYTES_S_PER_MBIT = 1e6 / 8
"""Links are given in Mbit/s, as they are sold."""

DRAFTERS = ("ngram",)
"""What can guess tokens; `runtime.steps.drafting` has it, and would load torch."""

Command = TypeVar("Command", bound=Callable[..., Any])


def recording_options(command: Command) -> Command:
    """Add `--model` and `--name`."""
    command = click.option("--name", help="Name to record under; else one is made.")(command)
    return click.option("--model", metavar="REF", help="Model to use; needed where several are registered.")(command)


def sampling_options(command: Command) -> Command:
    """Add how long an answer may be, how its tokens are chosen, and whether some are guessed first."""
    command = click.option(
        "--draft",
        type=click.Choice(DRAFTERS),
        help="Guess tokens of the answer and check several at a time: `ngram` takes what followed the same words "
        "before. Faster where an answer repeats what was said, slower elsewhere; the answer does not depend on the "
        "guesses.",
    )(command)
    command = click.option("--seed", default=0, show_default=True, help="Draws are the same for the same seed.")(
        command
    )
    command = click.option(
        "--temperature", default=0.0, show_default=True, type=FiniteRange(min=0),
        help="0 always takes the likeliest token.",
    )(command)  # fmt: skip
    return click.option(
        "--max-tokens",
        default=64,
        show_default=True,
        type=click.IntRange(min=0),
        help="Most tokens of an answer.",
    )(command)
