"""`model`: register models and compare what decides the bytes of their KV caches."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.identity import diff as diff_identity
from ..cybergraph.leafsize import RELATIVE_ERROR
from .card import card
from .context import Session, pass_session
from .models import NONE_REGISTERED, KnownModel, find_model
from .nodes import outline, read_node
from .output import answer, facts, say, table
from .preload import preload, read_card
from .progress import bar
from .prompts import is_file

if TYPE_CHECKING:
    from ..cybergraph.cid import HashName
    from ..cybergraph.leafsize import KvDtype, KvScheme

BUILT_IN = "smollm2"
SCHEMES: "Final[dict[str, KvScheme]]" = {"none": "none", "int8": "int8/row/f32"}
"""Stored form of K and V by the word that chooses it."""


@click.group()
def model() -> None:
    """Register models and compare their identities."""


model.add_command(card)
model.add_command(preload)


@model.command()
@click.argument("source", metavar="PATH|smollm2")
@click.option("--name", help="Name to call it by; else that of the folder or file, and what "
              "differs behind it where that is taken by the same model with other options.")  # fmt: skip
@click.option("--block-size", default=16, show_default=True, type=click.IntRange(1, 1024), help="Tokens per block.")
@click.option("--dtype", default="f32", show_default=True, type=click.Choice(["f32", "bf16", "f16"]),
              help="Element type of keys and values, and of the computation.")  # fmt: skip
@click.option("--leaf-hash", default="blake3", show_default=True, type=click.Choice(["blake3", "sha2-256"]),
              help="Hash that names leaves; sha2-256 is slower and known to more readers.")  # fmt: skip
@click.option(
    "--kv-quant",
    default="none",
    show_default=True,
    type=click.Choice(list(SCHEMES)),
    help="How keys and values are stored: as they are, or with a bounded error in about a quarter of the room.",
)
@pass_session
def add(
    session: Session,
    source: str,
    *,
    name: str | None,
    block_size: int,
    dtype: "KvDtype",
    leaf_hash: "HashName",
    kv_quant: str,
) -> None:
    """Register a model.

    PATH is a folder of safetensors files, which stays where it is, or a GGUF file, which is converted once.
    The word smollm2 registers the built-in model. Adding a source again takes its present content.
    """
    from ..runtime.models.registry import find_source, smollm2_source

    built_in = source == BUILT_IN
    path = smollm2_source() if built_in else find_source(Path(source))
    session.create_home()
    with bar(session, "converting") as progress:
        record = session.registry.add(
            path,
            name=name,
            base=BUILT_IN if built_in else None,
            block_size=block_size,
            dtype=dtype,
            leaf_hash=leaf_hash,
            scheme=SCHEMES[kv_quant],
            progress=progress,
        )
    session.store.put_node(record.identity)
    added = KnownModel(record.name, record.cid, record.identity)
    answer(session, _describe(added), lambda: _show(added, whole=not session.quiet))


@model.command("list")
@pass_session
def list_models(session: Session) -> None:
    """List the registered models."""
    session.require_home()
    models: list[dict[str, Any]] = [
        {
            "name": record.name,
            "cid": record.cid,
            "architecture": record.identity.architecture,
            "block_size": record.identity.block_size,
            "kv_dtype": record.identity.kv_dtype,
            "kv_quant_scheme": record.identity.kv_quant_scheme,
            "source": record.source,
        }
        for record in session.registry.records()
    ]

    def show_all() -> None:
        for each in models:
            say(each["name"], bold=True)
            say(f"  {each['cid']}")
            words = (
                each["architecture"],
                f"blocks of {each['block_size']}",
                each["kv_dtype"],
                *([each["kv_quant_scheme"]] if each["kv_quant_scheme"] != "none" else []),
                str(each["source"]),
            )
            say(f"  {' · '.join(words)}", dim=True)
        if not models:
            say(f"no models yet; {NONE_REGISTERED}")

    answer(session, {"models": models}, show_all)


@model.command()
@click.argument("ref")
@pass_session
def show(session: Session, ref: str) -> None:
    """Show the identity of a model, field by field.

    REF is a registered name, the CID of a model, a conversation made with it, or a FILE.model, of which the card is
    shown, too.
    """
    if ref.endswith(".model") and is_file(ref):
        card_, found = read_card(session, Path(ref))
        answer(session, {**_describe(found), "card": card_}, lambda: _show_card(card_, found))
        return
    found = find_model(session, ref)
    answer(session, _describe(found), lambda: _show(found))


def _show_card(card_: dict[str, Any], found: KnownModel) -> None:
    registered = found.name if found.name is not None else "not registered here"
    facts(
        [
            ("card", card_["cid"]), ("called", card_["name"]), ("licence", card_["licence"] or None),
            ("signed by", card_["signed_by"] or "nobody"), *(("lists", root) for root in card_["lists"]),
            ("model", registered), ("cid", found.cid),
        ]
    )  # fmt: skip
    say("")
    outline(read_node(found.identity.encode()))


@model.command()
@click.argument("a")
@click.argument("b")
@pass_session
def diff(session: Session, a: str, b: str) -> None:
    """Name each field in which two models differ, with both values.

    Models that differ in any field share no blocks.
    """
    ours, theirs = find_model(session, a), find_model(session, b)
    differs = diff_identity(ours.identity, theirs.identity)
    data = {"a": ours.cid, "b": theirs.cid, "differs": [each._asdict() for each in differs]}

    def show_differences() -> None:
        facts([("a", f"{ours.cid} {ours.name or ''}"), ("b", f"{theirs.cid} {theirs.name or ''}")])
        if differs:
            table(("field", "a", "b"), [(each.field, _value(each.a), _value(each.b)) for each in differs])
        else:
            say("the same model")

    answer(session, data, show_differences)


def _value(value: object) -> object:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else value


def _describe(known: KnownModel) -> dict[str, object]:
    error = RELATIVE_ERROR[known.identity.kv_quant_scheme]
    return {
        "name": known.name,
        "cid": known.cid,
        "kv_relative_error": float(error),
        "identity": read_node(known.identity.encode()),
    }


def _show(known: KnownModel, *, whole: bool = True) -> None:
    if not whole:
        facts([("name", known.name), ("cid", known.cid)])
        return
    error = RELATIVE_ERROR[known.identity.kv_quant_scheme]
    words = f"stored within {error} of the largest number of each row" if error else "stored as they are computed"
    facts([("name", known.name), ("cid", known.cid), ("keys and values", words)])
    say("")
    outline(read_node(known.identity.encode()))
