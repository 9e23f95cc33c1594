"""`document`: texts that are recorded once, to be found again and placed into conversations."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import NotFound
from ..cybergraph.index.marks import encode_name
from .changing import changing
from .context import Session, pass_session
from .interrupt import stoppable
from .models import choose_model
from .names import say_moves, slug, unique
from .options import recording_options
from .output import answer, facts, say
from .recording import Recording
from .scrubbing import scrubbing
from .splicing import library_of, open_bench, readable_documents
from .text import count, plain

if TYPE_CHECKING:
    from ..runtime.splice.library import Document


@click.group()
def document() -> None:
    """Record texts once, to find and place them again.

    A document is a conversation of its own, in larger blocks, together with the text it was recorded from: where its
    keys and values are lost, they are computed again from that.
    """


@document.command()
@click.argument("file", metavar="FILE|-")
@recording_options
@click.option("--block-size", default=64, show_default=True, type=click.IntRange(1, 1024), help="Tokens per block.")
@pass_session
def add(session: Session, file: str, *, model: str | None, name: str | None, block_size: int) -> None:
    """Record the text of FILE, or of stdin for `-`, as a document.

    Nothing is put around it, neither a chat template nor a start token: it may come to stand anywhere. A text that is
    recorded already is not recorded again. Interrupted, no document is made; what was computed is used the next time.
    """
    text = _read(file)
    if name is not None:
        encode_name(name)
    record = choose_model(session, model, None)
    from ..runtime.live import Live
    from ..runtime.splice.library import Document

    session.create_home()
    library = library_of(session)
    library.check_text(text)
    bench = open_bench(session, record)
    engine = bench.engines.sized(block_size)
    text_cid = library.keep_text(text)
    known = next((d for d in readable_documents(session) if (d.text, d.model) == (text_cid, engine.model_cid)), None)
    if known is not None and session.store.has(known.root):
        _answer(session, known, is_new=False)
        return
    base = slug(text if file == "-" else Path(file).stem)
    name = name or (known.name if known else unique(session.index, base))
    head = say_moves(session, name, None)
    recording = Recording(session, Live(engine), bench.codec, name, None, None, None, 0, head)
    with changing(session) as change, scrubbing(session):
        with stoppable() as stop:
            recording.append_tokens(bench.codec.encode(text, special=False), stop)
        change.hold()
        root, tokens = recording.save(), len(recording.live.tokens)
        session.index.pin(text_cid, session.now())
        made = Document(recording.name, root, text_cid, engine.model_cid, block_size, tokens, session.now())
        library.keep(made)
        if known is not None and known.root != root:
            library.remove(known)
        _answer(session, made, is_new=True)


@document.command(name="list")
@pass_session
def list_documents(session: Session) -> None:
    """List the documents of this home."""
    session.require_home()
    documents = readable_documents(session)

    def show() -> None:
        for each in documents:
            say(each.name, bold=True)
            say(f"  {each.root}")
            say(f"  {count(each.tokens, 'token')} · blocks of {each.block_size} · {each.created}", dim=True)
        if not documents:
            say("no documents: `cyberkv document add FILE` records one")

    answer(session, {"documents": [_describe(each) for each in documents]}, show)


@document.command()
@click.argument("name")
@pass_session
def text(session: Session, name: str) -> None:
    """Print the text that the document NAME was recorded from."""
    session.require_home()
    library = library_of(session)
    found = library.find(name)
    words = library.text(found)
    answer(session, {**_describe(found), "content": words}, lambda: click.echo(plain(words), nl=False))


@document.command()
@click.argument("name")
@pass_session
def remove(session: Session, name: str) -> None:
    """Keep the text of NAME no longer, and do not find it any more.

    The conversation stays: `cyberkv forget` gives up its name. What neither needs goes with the next `gc`.
    """
    session.open_to_write()
    library = library_of(session)
    found = library.find(name)
    library.remove(found)
    if all(each.text != found.text for each in readable_documents(session)):
        session.index.unpin(found.text)
    answer(session, _describe(found), lambda: facts([("removed", found.name), ("root", found.root)]))


def _answer(session: Session, made: "Document", *, is_new: bool) -> None:
    rows = [
        ("document", made.name),
        ("root", made.root),
        ("text", made.text),
        ("tokens", f"{made.tokens:,} in blocks of {made.block_size}"),
        ("recorded", "now" if is_new else "before, in the same words"),
    ]
    answer(session, {**_describe(made), "new": is_new}, lambda: facts(rows))


def _describe(each: "Document") -> dict[str, str | int | Cid]:
    return {
        "name": each.name,
        "root": each.root,
        "text": each.text,
        "model": each.model,
        "block_size": each.block_size,
        "tokens": each.tokens,
        "created": each.created,
    }


def _read(name: str) -> str:
    """Read a UTF-8 file, or stdin for `-`, but no more than a document may have. Raises `NotFound`, a usage error."""
    from ..cybergraph.private import open_or_pipe
    from ..runtime.splice.library import MAX_TEXT_BYTES

    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
        else:
            with open_or_pipe(Path(name)) as file:
                data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"cannot read {name:.200}: {error.strerror}", hint="give a text file, or - for stdin", path=name[:200]
        ) from error
    if len(data) > MAX_TEXT_BYTES:
        raise click.UsageError(f"{name} has more than the {MAX_TEXT_BYTES:,} bytes of a document; cut it into several")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text: byte {error.start}") from error
