"""The program: global options, commands loaded on use, and one place where errors become exit codes."""

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from .commands import COMMANDS, FAMILIES
from .context import Session, default_home
from .failure import report
from .interrupt import INTERRUPTED, obey_late_interrupts

_FLAGS = re.compile(r"--(json|quiet|verbose|no-color|no-progress)|-[qv]+")


def hoist(args: Sequence[str]) -> list[str]:
    """Move global options to the front, wherever they stand; what follows `--` stays as it is.

    >>> hoist(["show", "chat", "--json", "--home", "here", "--", "-v"])
    ['--json', '--home', 'here', 'show', 'chat', '--', '-v']
    """
    front: list[str] = []
    rest: list[str] = []
    pending = iter(args)
    for arg in pending:
        if arg == "--":
            return [*front, *rest, arg, *pending]
        if arg == "--home":
            front += [arg, *(value for value in [next(pending, None)] if value is not None)]
        elif _FLAGS.fullmatch(arg) or arg.startswith("--home="):
            front.append(arg)
        else:
            rest.append(arg)
    return [*front, *rest]


class Program(click.Group):
    """The command group. Command modules are imported when they are run, never for the help page."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command, or give None for a name that is not in the table."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].target.split(":")
        command: click.Command = getattr(import_module(f".{module}", __package__), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that a line names. Raises a usage error with the names that come near a mistyped one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, COMMANDS)
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"No such command {name!r:.80}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands by family, from the table alone."""
        width = max(map(len, COMMANDS))
        for family, entries in FAMILIES.items():
            with formatter.section(family):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in entries.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the global options from any place on the line."""
        return super().parse_args(ctx, hoist(args))

    def main(  # type: ignore[override]  # always leaves through sys.exit
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run one command line and leave with its exit code."""
        args = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name or "cyberkv", **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the pipe has left; nothing may try to flush what is left into it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except Exception as error:
            options = hoist(args)
            color = "--no-color" not in options and not os.environ.get("NO_COLOR")
            sys.exit(report(error, as_json="--json" in options, verbose=_verbosity(options), color=color))
        sys.exit(code if isinstance(code, int) else 0)


def _verbosity(options: Sequence[str]) -> int:
    clusters = (arg for arg in options if re.fullmatch("-[qv]+", arg))
    return sum(arg.count("v") for arg in clusters) + list(options).count("--verbose")


@click.group(
    "cyberkv",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Options of the program may stand before or after the command. Exit codes: 0 done, 1 unexpected, "
    "2 usage, 3 not found, 4 corrupt or tampered, 5 refused, 6 access denied, 7 peer unreachable, 8 full, "
    "130 interrupted.",
)
@click.option(
    "--home", envvar="CYBERKV_HOME", type=click.Path(path_type=Path, file_okay=False),
    help="Folder of store, index and models. Else $CYBERKV_HOME, else the platform's data folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object on stdout; errors too.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks on stderr.")
@click.option("-v", "--verbose", count=True, help="More remarks; twice, tracebacks of unexpected errors.")
@click.option("--no-color", is_flag=True, help="No colours and no bold text.")
@click.option("--no-progress", is_flag=True, help="No progress bars.")
@click.version_option(package_name="cyberkv")
@click.pass_context
def cli(
    ctx: click.Context,
    home: Path | None,
    *,
    as_json: bool,
    quiet: bool,
    verbose: int,
    no_color: bool,
    no_progress: bool,
) -> None:
    """Keep the KV caches of language models as content-addressed blocks.

    A prefill that was paid once can be resumed, forked, shared and checked anywhere, by CID. Names of
    conversations, CIDs and unique beginnings of CIDs (8 letters or more) all name content.
    """
    if quiet and verbose:
        raise click.UsageError("-q and -v exclude each other", ctx)
    if no_color or os.environ.get("NO_COLOR"):
        ctx.color = False
    ctx.obj = Session(
        home or default_home(),
        as_json=as_json,
        quiet=quiet,
        verbose=verbose,
        progress=not no_progress,
    )
    ctx.call_on_close(ctx.obj.close)


def main() -> NoReturn:
    """Run the command line of this process."""
    # Read when torch loads. With the default, threads spin while they wait: on a busy machine of two cores, two
    # threads then take five to ten times as long as one; with this, less than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    obey_late_interrupts()
    try:
        cli.main()
    except KeyboardInterrupt:  # before a command had begun, or after it had ended
        sys.exit(INTERRUPTED)
