"""`run`: answer a prompt and record the conversation."""

import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cybergraph.errors import CyberKVError
from .arriving import Arriving, check_options, start_arriving
from .context import Session, pass_session
from .device import Device, device_options
from .interrupt import INTERRUPTED, Stop, stoppable
from .names import slug
from .options import REF, TEXT, recording_options, sampling_options
from .output import line, remark
from .prompts import first_turn
from .recording import Recording, Select, say_interrupted, start, summary
from .scrubbing import scrubbing
from .text import count, plain

if TYPE_CHECKING:
    from ..runtime.models.tokenizer import TextCodec
    from ..runtime.sampling import Sampling

SELECTIONS = ("recent", "similar")
"""Names of policies in `runtime.selection`, which would load torch."""


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
    "--source", "sources", metavar="URL|FILE.car|kubo:[URL]", multiple=True,
    help="Bring the conversation of --from (its CID, or that of a receipt) from there, and compute meanwhile.",
)  # fmt: skip
@click.option(
    "--trust", "trusted", metavar="KEY|unsigned", multiple=True,
    help="With --source: trust this signer from now on; `unsigned` accepts this one conversation, whoever made it.",
)  # fmt: skip
@click.option(
    "--system", type=TEXT, metavar="TEXT", help="System message; else that of the chat template, if it has one."
)
@click.option(
    "--select",
    type=click.Choice(SELECTIONS),
    help="Beyond the model's positions, go on approximately: the answer sees the blocks that this chooses.",
)
@sampling_options
@device_options
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
    sources: tuple[str, ...],
    trusted: tuple[str, ...],
    system: str | None,
    select: str | None,
    max_tokens: int,
    temperature: float,
    seed: int,
    draft: str | None,
    device: str,
    device_memory: int | None,
) -> None:
    """Answer a prompt and record the conversation.

    The answer is written to stdout as it comes, what it cost to stderr. Blocks that this home already holds
    are reused. Interrupted, the conversation so far is recorded. The head of a name goes on under it; any
    other root starts a new name. With --select, a conversation may grow beyond the model's positions: `recent` lets
    the answer see the beginning and the newest blocks, `similar` also those that share rare tokens with the prompt.

    With --source, the conversation is brought from there in the order in which layers need it, and the first layers
    compute while the last ones are on their way. It is recorded as by `fetch`, and its signer has to be trusted. What
    does not come is computed.
    """
    check_options(from_ref, select, sources, trusted)
    if from_ref is None and not prompt.strip():
        raise click.UsageError("the prompt is empty: give a text, or --from REF to go on without one")
    if system is not None and from_ref is not None:
        raise click.UsageError("--system opens a conversation; it cannot be given with --from")
    if select is not None and draft is not None:
        raise click.UsageError("--draft checks guesses against all that came before; it cannot be given with --select")

    def coming_tokens(codec: "TextCodec") -> int:
        text = codec.continue_turn(prompt) if from_ref else codec.render(first_turn(prompt, system))
        return len(codec.encode(text, special=False)) + max_tokens

    selecting = None if select is None else Select(select, coming_tokens)
    coming: Arriving | None = None
    if sources and from_ref is not None:
        stack = ctx.with_resource(ExitStack())
        coming = start_arriving(
            session, stack, model=model, name=name, ref=from_ref, sources=sources, trusted=trusted,
            device=Device(device, device_memory, not_there="--source"),
        )  # fmt: skip
        recording = coming.recording
    else:
        place = Device(device, device_memory, not_there=None if select is None else "--select")
        recording = start(
            session, model=model, name=name, from_ref=from_ref, base=slug(prompt), select=selecting, device=place,
            comes_later=True,
        )  # fmt: skip
    from ..runtime.sampling import Sampling

    use_drafts(recording, draft)
    ctx.with_resource(scrubbing(session))
    text = opening(recording, prompt, system)
    with stoppable() as stop:
        turn = take_turn(recording, text, max_tokens, Sampling(temperature, seed), stop)
        figures = recording.figures()
        if coming is not None:
            figures["fetched"] = coming.settle()
        if session.as_json:
            line({**figures, **turn._asdict()})
        else:
            for word, value in summary(figures):
                if value is not None:
                    remark(session, f"{word:<8}{value}")
        say_limit(recording, turn, max_tokens)
    if stop.asked:
        say_interrupted(recording, count(len(recording.live.tokens), "token"), again=from_ref is None)
        ctx.exit(INTERRUPTED)


def opening(recording: Recording, prompt: str, system: str | None = None) -> str:
    """Give the text that asks `prompt` next and opens the answer."""
    if recording.live.tokens or recording.first_append is not None:
        return recording.codec.continue_turn(prompt)
    return recording.codec.render(first_turn(prompt, system))


def use_drafts(recording: Recording, draft: str | None) -> None:
    """Let answers be drafted as `--draft` says, where this machine allows it; else say why not."""
    if draft is None:
        return
    if (reason := recording.live.engine.domain.scattered) is not None:
        remark(recording.session, f"nothing is drafted here: {reason}")
        return
    from ..runtime.steps.drafting import PromptLookup

    recording.drafter = PromptLookup()


def emit(piece: str) -> None:
    """Write a piece of an answer at once."""
    sys.stdout.write(plain(piece))
    sys.stdout.flush()


def take_turn(recording: Recording, text: str, max_tokens: int, sampling: "Sampling", stop: Stop) -> Turn:
    """Append `text`, write the answer as it comes, record both. What is recorded is to be told within `stop`.

    Raises `KeyboardInterrupt` where it came too early for anything to be recorded.
    """
    pieces: list[str] = []
    before = recording.tokens_generated
    shown = not recording.session.as_json
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
    stop.hold()
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
