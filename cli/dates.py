"""`--since` and `--until`: when something was recorded, as the log of its name has it."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_LAST_OF_DAY: Final = "T23:59:59Z"
_FIRST_OF_DAY: Final = "T00:00:00Z"


class Span(NamedTuple):
    """A stretch of time, both ends included, as RFC 3339 in UTC to the second: such times sort as text."""

    since: str | None
    until: str | None

    @property
    def is_open(self) -> bool:
        """Whether any time lies in it, even one that is not known."""
        return self.since is None and self.until is None

    def holds(self, created: str) -> bool:
        """Say whether a recorded time lies in it. What has no time lies in no bounded span.

        >>> march = Span("2025-03-01T00:00:00Z", "2025-03-31T23:59:59Z")
        >>> march.holds("2025-03-31T23:59:59Z"), march.holds("2025-04-01T00:00:00Z"), march.holds("")
        (True, False, False)
        """
        if self.is_open:
            return True
        return bool(created) and (self.since or created) <= created <= (self.until or created)


class Moment(click.ParamType[str]):
    """A day in UTC, or a time as RFC 3339; `clock` completes a day."""

    name = "date"

    def __init__(self, clock: str) -> None:
        self._clock = clock

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read it, and give it as the log has times."""
        try:
            moment = datetime.fromisoformat(value + self._clock if _DAY.fullmatch(value) else value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            moment = moment.astimezone(UTC)
        except (ValueError, OverflowError):  # the latter for what is no year in UTC any more
            self.fail(f"{value!r:.80} is no date such as 2025-03-01 or 2025-03-01T09:30:00Z", param, ctx)
        return moment.strftime(f"{moment.year:04}-%m-%dT%H:%M:%SZ")  # %Y has as many digits as the year


def date_options(command: Command) -> Command:
    """Add `--since` and `--until`."""
    command = click.option(
        "--until", type=Moment(_LAST_OF_DAY), metavar="DATE", help="Recorded then or before; a day counts whole."
    )(command)
    return click.option("--since", type=Moment(_FIRST_OF_DAY), metavar="DATE", help="Recorded then or later, in UTC.")(
        command
    )
