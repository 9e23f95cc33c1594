"""`chat`: a dialogue, recorded turn by turn."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ..cybergraph.errors import CyberKVError
from .context import Session, pass_session
from .failure import INTERRUPTED
from .options import REF, TEXT, recording_options, sampling_options
from .output import line, remark
from .recording import Recording, start
from .run import opening, say_limit, take_turn
from .scrubbing import scrubbing

if TYPE_CHECKING:
    from ..runtime.sampling import Sampling

PROMPT = "> "
HELP = "/fork [TOKEN] goes on in a copy, /root names what is recorded, /publish shows and asks, /quit ends"


@click.command()
@click.argument("ref", type=REF, required=False)
@recording_options
@click.option("--system", type=TEXT, metavar="TEXT", help="System message of a new conversation.")
@sampling_options
@click.pass_context
@pass_session
def chat(
    session: Session,
    ctx: click.Context,
    ref: str | None,
    *,
    model: str | None,
    name: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> None:
    """Hold a dialogue and record every turn.

    With REF it goes on from there. Each line of stdin is a turn, whether typed or piped. /fork [TOKEN] goes
    on in a copy from that token, /root names what is recorded, /publish shows what would become public and asks,
    as `cyberkv publish --public` does, /quit ends and says where the dialogue is kept. Ctrl-C records what there is
    and leaves.
    """
    if system is not None and ref is not None:
        raise click.UsageError("--system opens a conversation; it cannot be given with REF")
    recording = start(session, model=model, name=name, from_ref=ref, base="chat")
    from ..runtime.sampling import Sampling

    sampling = Sampling(temperature, seed)
    ctx.with_resource(scrubbing(session))
    remark(session, f"{recording.name}: {HELP}")
    try:
        for text in _lines():
            word, _, argument = text.partition(" ")
            if word == "/quit":
                break
            if word == "/fork":
                recording = _fork(session, recording, argument)
            elif word == "/root":
                _say(session, {"root": str(recording.root or ""), "name": recording.name})
            elif word == "/publish":
                _publish(session, ctx, recording)
            elif word.startswith("/"):
                remark(session, HELP)
            else:
                _turn(session, recording, text, system, max_tokens, sampling)
    except KeyboardInterrupt:
        remark(session, f"\n{_kept(recording)}")
        ctx.exit(INTERRUPTED)
    remark(session, _kept(recording))


def _kept(recording: Recording) -> str:
    if recording.root is None:
        return "nothing was recorded"
    return f"kept as {recording.name} {recording.root}"


def _lines() -> Iterator[str]:
    """Yield what is typed or piped, line by line, without blank ones. Raises a usage error for what is not UTF-8."""
    lines = _typed() if sys.stdin.isatty() and sys.stdout.isatty() else sys.stdin.buffer
    try:
        for line_bytes in lines:
            if text := line_bytes.decode().strip():
                yield text
    except UnicodeError as error:
        raise click.UsageError(f"a line is not UTF-8 text: {error}") from error


def _typed() -> Iterator[bytes]:
    import readline  # noqa: F401  # gives `input` line editing

    with suppress(EOFError):
        while True:
            yield input(PROMPT).encode()


def _turn(
    session: Session,
    recording: Recording,
    text: str,
    system: str | None,
    max_tokens: int,
    sampling: "Sampling",
) -> None:
    turn = take_turn(recording, opening(recording, text, system), max_tokens, sampling)
    if session.as_json:
        line({**recording.figures(), **turn._asdict()})
    say_limit(recording, turn, max_tokens)
    if turn.interrupted:
        raise KeyboardInterrupt


def _fork(session: Session, recording: Recording, argument: str) -> Recording:
    """Go on in a copy; the original stays as it is recorded."""
    length = len(recording.live.tokens)
    at = int(argument) if argument.isdecimal() else length
    if at > length or (argument and not argument.isdecimal()):
        remark(session, f"/fork takes a token from 0 to {length}")
        return recording
    child = recording.fork(at)
    recording.live.close()
    remark(session, f"{child.name}: forked at token {at} of {recording.name}")
    return child


def _publish(session: Session, ctx: click.Context, recording: Recording) -> None:
    """Do what `cyberkv publish NAME --public` does; that it was refused or failed does not end the dialogue."""
    from .publish import publish

    if recording.root is None:
        remark(session, "nothing is recorded yet")
        return
    try:
        ctx.invoke(publish, ref=recording.name, public=True)
    except CyberKVError as error:
        remark(session, f"{error.message}; {error.hint}")


def _say(session: Session, data: dict[str, str]) -> None:
    if session.as_json:
        line(data)
    else:
        click.echo(" ".join(data.values()))
