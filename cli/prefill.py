"""`prefill`: record a text without generating anything."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from .context import Session, pass_session
from .device import Device, device_options
from .interrupt import INTERRUPTED, stoppable
from .names import slug
from .options import REF, recording_options
from .output import answer, facts
from .prompts import read_text
from .recording import say_interrupted, start, summary
from .scrubbing import scrubbing
from .text import count

if TYPE_CHECKING:
    from ..runtime.live import Live


@click.command()
@click.argument("file", metavar="FILE|-")
@recording_options
@click.option("--from", "from_ref", type=REF, help="Conversation to append to.")
@click.option(
    "--budget", type=click.IntRange(min=0), metavar="BYTES",
    help="Load at most this much of what is known of the text; compute the rest.",
)  # fmt: skip
@device_options
@click.pass_context
@pass_session
def prefill(
    session: Session,
    ctx: click.Context,
    file: str,
    *,
    model: str | None,
    name: str | None,
    from_ref: str | None,
    budget: int | None,
    device: str,
    device_memory: int | None,
) -> None:
    """Record a text without generating anything.

    The text of FILE, or of stdin for `-`, is taken as it is, without a chat template. Blocks that this home
    already holds are reused, as `why` says. Interrupted, what was computed so far is recorded.
    """
    text = read_text(file)
    if not text:
        raise click.UsageError(f"{file} is empty")
    base = slug(text if file == "-" else Path(file).stem)
    place = Device(device, device_memory)
    recording = start(
        session, model=model, name=name, from_ref=from_ref, base=base, device=place, comes_later=True
    )  # fmt: skip
    tokens = recording.codec.encode(text, special=from_ref is None)
    before = recording.recorded_tokens
    append = recording.first_append or cast("Live", recording.live).append  # nothing was selected
    recording.first_append = partial(append, budget_bytes=budget)
    with scrubbing(session), stoppable() as stop:
        with suppress(KeyboardInterrupt):
            recording.append_tokens(tokens, stop)
        stop.hold()
        recording.save_progress()
        figures = {**recording.figures(), "text": "", "interrupted": stop.asked, "finish_reason": None}
        answer(session, figures, lambda: facts(summary(figures)))
    if stop.asked:
        kept = len(recording.live.tokens) - before
        part = "all of" if kept == len(tokens) else f"{kept:,} of"
        say_interrupted(recording, f"{part} {count(len(tokens), 'token')}", again=from_ref is None)
        ctx.exit(INTERRUPTED)
