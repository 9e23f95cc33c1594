"""`chat`: a dialogue, recorded turn by turn."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from ..cybergraph.chain import load_root
from ..cybergraph.errors import CyberKVError, UnsupportedModel
from .context import Session, pass_session
from .device import Device, device_options
from .interrupt import INTERRUPTED, holdable, stoppable
from .options import REF, TEXT, recording_options, sampling_options
from .output import line, remark
from .recording import Recording, start
from .run import opening, say_limit, take_turn, use_drafts
from .scrubbing import scrubbing
from .text import count, preview

if TYPE_CHECKING:
    from ..runtime.live import Live
    from ..runtime.sampling import Sampling

PROMPT = "> "
_SHOWN_CHARS = 40
HELP = (
    "/undo takes the last turn back, /evict START:END takes tokens out, /fork [TOKEN] goes on in a copy, "
    "/root names what is recorded, /publish shows and asks, /quit ends"
)


class Asked(NamedTuple):
    """A turn of this session that can be taken back."""

    start: int
    """Token that it begins with."""
    text: str


def _no_from(ctx: click.Context, _param: click.Parameter, ref: str | None) -> None:
    """Say to whoever types it as for `run` how it is said here."""
    if ref is not None:
        raise click.UsageError(f"chat takes the conversation as an argument: cyberkv chat {shlex.quote(ref)}", ctx)


@click.command()
@click.argument("ref", type=REF, required=False)
@click.option("--from", hidden=True, expose_value=False, callback=_no_from)
@recording_options
@click.option("--system", type=TEXT, metavar="TEXT", help="System message of a new conversation.")
@sampling_options
@device_options
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
    draft: str | None,
    device: str,
    device_memory: int | None,
) -> None:
    """Hold a dialogue and record every turn.

    With REF it goes on from there. Each line of stdin is a turn, whether typed or piped. /undo takes the last turn
    back, /evict START:END takes tokens out, as `cyberkv evict` does, /fork [TOKEN] goes on in a copy from that token,
    /root names what is recorded, /publish shows what would become public and asks, as `cyberkv publish --public` does,
    /quit ends and says where the dialogue is kept. Ctrl-C records what there is and leaves.
    """
    if system is not None and ref is not None:
        raise click.UsageError("--system opens a conversation; it cannot be given with REF")
    recording = start(session, model=model, name=name, from_ref=ref, base="chat", device=Device(device, device_memory))
    from ..runtime.sampling import Sampling

    use_drafts(recording, draft)
    sampling = Sampling(temperature, seed)
    ctx.with_resource(scrubbing(session))
    remark(session, f"{recording.name}: {HELP}")
    turns: list[Asked] = []
    try:
        for text in _lines():
            word, _, argument = text.partition(" ")
            if word == "/quit":
                break
            if word == "/fork":
                recording = _fork(session, recording, argument)
                turns = [each for each in turns if each.start < len(recording.live.tokens)]
            elif word == "/undo":
                _undo(session, recording, turns)
            elif word == "/evict":
                turns = _evict(session, recording, argument, turns)
            elif word == "/root":
                _say(session, {"root": str(recording.root or ""), "name": recording.name})
            elif word == "/publish":
                _publish(session, ctx, recording)
            elif word.startswith("/"):
                remark(session, HELP if word == "/help" else f"there is no {word}; {HELP}")
            else:
                turns.append(Asked(len(recording.live.tokens), text))
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
    with stoppable() as stop:
        turn = take_turn(recording, opening(recording, text, system), max_tokens, sampling, stop)
        if session.as_json:
            line({**recording.figures(), **turn._asdict()})
        say_limit(recording, turn, max_tokens)
    if stop.asked:
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


def _undo(session: Session, recording: Recording, turns: list[Asked]) -> None:
    """Go back to where the last turn began; it stays in the log of the name."""
    if not turns:
        remark(session, f"{recording.name} has no turn of this session to take back; "
               "`cyberkv log` has the earlier roots")  # fmt: skip
        return
    (at, text), length = turns.pop(), len(recording.live.tokens)
    cast("Live", recording.live).rollback(at)  # a dialogue is never over selected blocks
    if recording.fork_at is not None:
        recording.fork_at = min(recording.fork_at, at)
    said = f"taken back: {preview(text, _SHOWN_CHARS)!r} and the answer, {count(length - at, 'token')}"
    if at:
        recording.save()
        if session.as_json:
            line({"root": str(recording.root), "name": recording.name})
        remark(session, f"{said}; {recording.name} has {count(at, 'token')} now: {recording.root}")
    else:
        recording.recorded_tokens = 0
        remark(session, f"{said}; back at the beginning: what comes next is recorded in its place")


def _evict(session: Session, recording: Recording, argument: str, turns: list[Asked]) -> list[Asked]:
    """Take tokens out, exactly, as `cyberkv evict NAME START:END`. Gives the turns of which something is left."""
    from .edited import Edited
    from .editing import edit

    if recording.root is None or not recording.live.tokens:
        remark(session, "nothing is recorded yet")
        return turns
    edited = replace(Edited.read(session, str(recording.root)), name=recording.name)
    try:
        cut = edited.named(argument).cut
        with holdable() as change:
            live = cast("Live", recording.live)
            new, receipt = edit(edited, live, recording.name, [cut], "exact", change, forget=False)
            root = load_root(session.store, new)
            recording.root = recording.head = new
            recording.parent, recording.fork_at = root.parent, root.fork_at
            recording.recorded_tokens = root.length
            _say(session, {"root": str(new), "name": recording.name, "receipt": receipt.as_json()})
            gone = count(receipt.dropped_tokens, "token")
            remark(session, f"{gone} gone, {receipt.recomputed_tokens:,} computed again")
    except (CyberKVError, click.UsageError) as error:
        if len(recording.live.tokens) != recording.recorded_tokens:
            raise  # they are gone in memory, and that could not be recorded: there is nothing to go on from
        help_ = "/evict takes START:END, the tokens that `cyberkv find` and `walk` give"
        if isinstance(error, UnsupportedModel):
            help_ = f"`cyberkv evict {recording.name} START:END` computes on the processor"
        remark(session, f"{error.message}; {help_}")
        return turns
    ends = [*(each.start for each in turns[1:]), len(edited.tokens)]
    return [
        each._replace(start=cut.moved(each.start))
        for each, end in zip(turns, ends, strict=False)  # of no turn there is an end, too
        if cut.moved(each.start) < cut.moved(end)
    ]


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


def _say(session: Session, data: dict[str, Any]) -> None:
    if session.as_json:
        line(data)
    else:
        click.echo(f"{data['root']} {data['name']}")
