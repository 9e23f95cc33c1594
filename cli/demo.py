"""`demo`: the main job from end to end, told and checked."""

import shutil
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from .context import Session, default_cache, pass_session
from .demo_checks import Check, check
from .demo_evict import demo_evict
from .demo_story import FIRST, NEXT, SECOND, Story, cyberkv, tell
from .model import BUILT_IN
from .output import answer, facts, remark, say, table
from .prompts import read_text
from .text import duration, preview, size

MOST_TEXT_BYTES = 100_000
"""The text is an argument of `run`, and systems bound the length of one."""
ANSWER_CHARS = 110
DOES_NOT_HOLD = 1


@click.group(invoke_without_command=True)
@click.option("--model", default=BUILT_IN, show_default=True, metavar="PATH|smollm2", help="Model to show it with.")
@click.option(
    "--text", "text_file", metavar="FILE", help="Text to read; else one of about 2,000 tokens that is included."
)
@click.pass_context
@pass_session
def demo(session: Session, ctx: click.Context, *, model: str, text_file: str | None) -> None:
    """Show the whole story on a real model, and check it.

    Home A records a text with a question, publishes and serves it. Home B fetches it and goes on in fresh processes,
    without the prefill. Both are temporary and removed at the end; this home is not touched. The weights are
    converted once, into the cache folder of the platform, and both homes read them from there: only keys and values
    travel. Exits with 1 if a claim does not hold. `demo evict` shows another thing, on a random model, in a second.
    """
    if ctx.invoked_subcommand is not None:
        return
    text = (files(__package__) / "demo.txt").read_text() if text_file is None else read_text(text_file)
    if len(text.encode()) > MOST_TEXT_BYTES:
        raise click.UsageError(f"the text is over {MOST_TEXT_BYTES:,} bytes")
    weights = _weights(session, model)
    try:
        with TemporaryDirectory(prefix="cyberkv-demo-") as folder:
            story = tell(session, Path(folder), weights, text)
    except KeyboardInterrupt:
        raise click.Abort("the temporary homes of the demo are gone, and nothing else was changed") from None
    checks = check(story)
    data = _figures(story, checks)
    answer(session, data, lambda: _show(story, data, checks))
    if data["failed"]:
        ctx.exit(DOES_NOT_HOLD)


demo.add_command(demo_evict)


def _weights(session: Session, model: str) -> Path:
    """Give the safetensors folder of a model; a GGUF file is converted into the cache, once."""
    from ..runtime.models.registry import Registry, find_source, smollm2_source

    source = smollm2_source() if model == BUILT_IN else find_source(Path(model))
    if source.is_dir():
        return source
    registry = Registry(default_cache() / "models")

    def converted() -> Path | None:
        folders = [registry.weights_folder(each) for each in registry.records() if each.source == source]
        return next((folder for folder in folders if folder.is_dir()), None)

    if (folder := converted()) is not None:
        return folder
    remark(session, f"convert {source.name} to {default_cache()}: once, about a minute")
    for name in ("store", "index"):  # of an earlier version, perhaps: nothing but the weights is kept here
        shutil.rmtree(default_cache() / name, ignore_errors=True)
    cyberkv(default_cache(), "model", "add", str(source))
    folder = converted()
    assert folder is not None  # noqa: S101  # it was added a moment ago
    return folder


def _figures(story: Story, checks: list[Check]) -> dict[str, Any]:
    prefill_s, fetch_s, resume_s = story.record["prefill_s"], story.fetch["seconds"], story.resume["resume_s"]
    steps = asdict(story)
    del steps["publish"]["text"], steps["publish"]["plan"]["items"]  # as long as the text and the chain
    return {
        "ok": all(each.holds for each in checks),
        "failed": [each.name for each in checks if not each.holds],
        "root": story.publish["root"],
        "prompt_tokens": story.prompt_tokens,
        "tokens": story.record["tokens_total"],
        "blocks": story.fetch["blocks_fetched"],
        "bytes": story.fetch["bytes_fetched"],
        "prefill_s": prefill_s,
        "fetch_s": fetch_s,
        "resume_s": resume_s,
        "ratio": round(prefill_s / (fetch_s + resume_s), 3),
        "checks": [each._asdict() for each in checks],
        "steps": steps,
    }


def _show(story: Story, data: dict[str, Any], checks: list[Check]) -> None:
    for home, question, step in (("A", FIRST, story.record), ("B", NEXT, story.go_on), ("A", SECOND, story.second)):
        say(f"home {home}: {question}", bold=True)
        say(f"  {preview(step['text'], ANSWER_CHARS)}")
    say("")
    both_s = data["fetch_s"] + data["resume_s"]
    rows = (
        ("home A reads the text (prefill)", data["prompt_tokens"], data["prefill_s"]),
        ("home B fetches what A has", data["tokens"], data["fetch_s"]),
        ("home B resumes it", data["tokens"], data["resume_s"]),
        ("home B in all", data["tokens"], both_s),
    )
    table(
        ("who does what", ">tokens", ">time", ">tokens/s"),
        [(name, f"{count:,}", duration(seconds), f"{count / seconds:,.0f}") for name, count, seconds in rows],
    )
    say("")
    rate = size(int(data["bytes"] / data["fetch_s"]))
    facts(
        [
            ("root", data["root"]),
            ("moved", f"{data['blocks']:,} objects, {size(data['bytes'])}, {rate}/s, each one hashed"),
            ("speed", f"fetch and resume are {data['ratio']:.1f} times as fast as the prefill"),
        ]
    )
    say("")
    for each in checks:
        say(f"{'holds' if each.holds else 'FAILS'}  {each.name}", fg="green" if each.holds else "red")
        say(f"       {each.detail}", dim=True)
    failed = len(data["failed"])
    verdict = f"{failed} of {len(checks)} claims do not hold" if failed else "everything holds"
    say(verdict, bold=True, fg="red" if failed else "green")
