"""`prefill`: record a text without generating anything."""

from contextlib import suppress
from pathlib import Path

import click

from .context import Session, pass_session
from .failure import INTERRUPTED
from .interrupt import stoppable
from .names import slug
from .options import REF, recording_options
from .output import answer, facts
from .prompts import read_text
from .recording import start, summary
from .scrubbing import scrubbing


@click.command()
@click.argument("file", metavar="FILE|-")
@recording_options
@click.option("--from", "from_ref", type=REF, help="Conversation to append to.")
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
) -> None:
    """Record a text without generating anything.

    The text of FILE, or of stdin for `-`, is taken as it is, without a chat template. Blocks that this home
    already holds are reused. Interrupted, what was computed so far is recorded.
    """
    text = read_text(file)
    if not text:
        raise click.UsageError(f"{file} is empty")
    base = slug(text if file == "-" else Path(file).stem)
    recording = start(session, model=model, name=name, from_ref=from_ref, base=base)
    with scrubbing(session), stoppable() as stop:
        with suppress(KeyboardInterrupt):
            recording.append(text, stop, special=from_ref is None)
        recording.save_progress()
    figures = {**recording.figures(), "text": "", "interrupted": stop.asked, "finish_reason": None}
    answer(session, figures, lambda: facts(summary(figures)))
    if stop.asked:
        ctx.exit(INTERRUPTED)
