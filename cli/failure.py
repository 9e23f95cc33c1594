"""Errors as a person or a program reads them, and the exit code of each."""

import errno
import json
import re
import sys
import traceback
from typing import Final, NamedTuple

import click

from ..cybergraph.errors import CyberKVError, TierFull
from .interrupt import INTERRUPTED
from .text import plain

_LINK_SECRET: Final = re.compile(r"(cyberkv://[a-z2-7]{20,59}|#v\d)[\w.~%+/?#=&:-]{8,}")
"""A share link, wherever it was typed by mistake: what stands after the CID opens a conversation."""

USAGE = 2


class Failure(NamedTuple):
    """What went wrong, ready to be shown."""

    exit_code: int
    kind: str
    message: str
    hint: str
    data: dict[str, object]


def describe(error: BaseException) -> Failure:
    """Find exit code and words for any error."""
    match error:
        case CyberKVError():
            return Failure(error.exit_code, error.kind, error.message, error.hint, error.data)
        case click.ClickException():
            ctx = getattr(error, "ctx", None)
            hint = f"see `{ctx.command_path} -h`" if ctx else ""
            return Failure(USAGE, "usage", error.format_message(), hint, {})
        case click.Abort() | KeyboardInterrupt():
            return Failure(
                INTERRUPTED, "interrupted", "interrupted", str(error) or "what was recorded before is kept", {}
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return Failure(TierFull.exit_code, TierFull.kind, str(error), "free some space", {})
        case OSError(errno=errno.ENAMETOOLONG):
            where = f": {error.filename!s:.80}…" if error.filename else ""
            return Failure(USAGE, "usage", f"a path is longer than the file system allows{where}", "shorten it", {})
    hint = "this should not happen; -v -v shows where it did"
    return Failure(1, "unexpected", f"{type(error).__name__}: {error}", hint, {})


def report(error: BaseException, *, as_json: bool, verbose: int, color: bool) -> int:
    """Print an error, as JSON on stdout or as text on stderr, in `color` on a terminal, and give the exit code."""
    failure = describe(error)
    if failure.kind == "unexpected" and verbose > 1:
        click.echo(_harmless("".join(traceback.format_exception(error))), err=True, nl=False)
    if as_json:
        words = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
        print(_harmless(json.dumps({"error": failure.data | words}, default=str)), flush=True)
    elif isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        click.secho(
            f"error: {plain(_harmless(failure.message))}", err=True, fg="red", color=color and sys.stderr.isatty()
        )
        if failure.hint:
            click.echo(f"hint: {plain(_harmless(failure.hint))}", err=True)
    return failure.exit_code


def _harmless(text: str) -> str:
    """Cut the secrets of share links out of a message. Their place shows; JSON stays JSON."""
    return _LINK_SECRET.sub(r"\1...", text)
