"""`run`: answer a prompt and record the conversation."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cybergraph.errors import CyberKVError
from .context import Session, pass_session
from .failure import INTERRUPTED
from .interrupt import stoppable
from .names import slug
from .options import REF, TEXT, recording_options, sampling_options
from .output import line, remark
from .prompts import first_turn
from .recording import Recording, start, summary
from .scrubbing import scrubbing
from .text import plain

if TYPE_CHECKING:
    from ..runtime.sampling import Sampling


class Turn(NamedTuple):
    """What one turn gave."""

    text: str
    interrupted: bool
    """Whether Ctrl-C ended it."""
    finish_reason: str | None
    """`stop` where the model ended its answer, `length` where it had no more tokens to spend; None if interrupted."""


@click.command()
@click.argument("prompt", type=TEXT)
@recording_options
@click.option("--from", "from_ref", type=REF, help="Conversation to go on from.")
@click.option(
    "--system", type=TEXT, metavar="TEXT", help="System message; else that of the chat template, if it has one."
)
@sampling_options
@click.pass_context
@pass_session
def run(
    session: Session,
    ctx: click.Context,
    prompt: str,
    *,
    model: str | None,
    name: str | None,
    from_ref: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> None:
    """Answer a prompt and record the conversation.

    The answer is written to stdout as it comes, what it cost to stderr. Blocks that this home already holds
    are reused. Interrupted, the conversation so far is recorded. The head of a name goes on under it; any
    other root starts a new name.
    """
    if system is not None and from_ref is not None:
        raise click.UsageError("--system opens a conversation; it cannot be given with --from")
    recording = start(session, model=model, name=name, from_ref=from_ref, base=slug(prompt))
    from ..runtime.sampling import Sampling

    ctx.with_resource(scrubbing(session))
    turn = take_turn(recording, opening(recording, prompt, system), max_tokens, Sampling(temperature, seed))
    figures = recording.figures()
    if session.as_json:
        line({**figures, **turn._asdict()})
    else:
        for word, value in summary(figures):
            if value is not None:
                remark(session, f"{word:<8}{value}")
    say_limit(recording, turn, max_tokens)
    if turn.interrupted:
        ctx.exit(INTERRUPTED)


def opening(recording: Recording, prompt: str, system: str | None = None) -> str:
    """Give the text that asks `prompt` next and opens the answer."""
    if recording.live.tokens:
        return recording.codec.continue_turn(prompt)
    return recording.codec.render(first_turn(prompt, system))


def emit(piece: str) -> None:
    """Write a piece of an answer at once."""
    sys.stdout.write(plain(piece))
    sys.stdout.flush()


def take_turn(recording: Recording, text: str, max_tokens: int, sampling: "Sampling") -> Turn:
    """Append `text`, write the answer as it comes, record both.

    Raises `KeyboardInterrupt` where it came too early for anything to be recorded.
    """
    pieces: list[str] = []
    before = recording.tokens_generated
    shown = not recording.session.as_json
    with stoppable() as stop:
        try:
            recording.append(text, stop)
            for piece in recording.generate(max_tokens, sampling, stop):
                pieces.append(piece)
                if shown:
                    emit(piece)
        except KeyboardInterrupt:
            pass
        except CyberKVError:
            if shown and pieces:
                emit("\n")
            # What failed is told in any case; that nothing could be kept either is no news beside it.
            with suppress(CyberKVError, KeyboardInterrupt):
                recording.save_progress()
            raise
        recording.save_progress()
    if shown:
        emit("\n")
    spent = recording.tokens_generated - before >= max_tokens or not recording.has_room
    return Turn("".join(pieces), stop.asked, None if stop.asked else "length" if spent else "stop")


def say_limit(recording: Recording, turn: Turn, max_tokens: int) -> None:
    """Say so where an answer stopped although the model may have had more to say."""
    if turn.finish_reason == "length":
        limit = f"at --max-tokens {max_tokens}" if recording.has_room else "where the model's positions are used up"
        remark(recording.session, f"the answer stopped {limit}")
