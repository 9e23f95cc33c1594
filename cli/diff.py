"""`diff`: what two conversations share."""

from itertools import islice
from typing import Any

import click

from ..cybergraph.chain import common_prefix, load_root, tokens
from ..cybergraph.identity import diff as diff_identity
from ..cybergraph.nodes import Conversation, Model
from ..cybergraph.refs import resolve_root
from .context import Session, pass_session
from .models import find_codec
from .options import REF
from .output import answer, facts
from .text import count, preview, size

CONTEXT_TOKENS = 24
PREVIEW_CHARS = 80


@click.command()
@click.argument("a", type=REF)
@click.argument("b", type=REF)
@pass_session
def diff(session: Session, a: str, b: str) -> None:
    """Say what two conversations share and where they part.

    Tokens are compared from the start on. Blocks can only be shared between conversations of one model.
    """
    cids = [resolve_root(ref, session.index, session.store) for ref in (a, b)]
    roots = [load_root(session.store, cid) for cid in cids]
    common = common_prefix(session.store, *roots)
    parts = _parts(session, roots, common.common_tokens)
    data: dict[str, Any] = {
        "common_tokens": common.common_tokens,
        "common_blocks": common.common_blocks,
        "shared_bytes": common.shared_bytes,
        "a": {"root": cids[0], "tokens": roots[0].length},
        "b": {"root": cids[1], "tokens": roots[1].length},
        "parts_at": parts,
        "model_differs": _model_differs(session, roots),
    }

    def show() -> None:
        facts(
            [
                ("a", f"{cids[0]} {count(roots[0].length, 'token')}"),
                ("b", f"{cids[1]} {count(roots[1].length, 'token')}"),
                ("common tokens", f"{common.common_tokens:,}"),
                ("common blocks", f"{common.common_blocks:,}"),
                ("shared", size(common.shared_bytes)),
            ]
        )
        for difference in data["model_differs"]:
            facts([("models differ", f"{difference['field']}: {difference['a']} / {difference['b']}")])
        if parts:
            facts(_words(parts))

    answer(session, data, show)


def _parts(session: Session, roots: list[Conversation], at: int) -> dict[str, Any] | None:
    """Say where the conversations part: the tokens there, and the text around; None if they are equal."""
    if all(root.length == at for root in roots):
        return None
    codec = find_codec(session, roots[0].model)
    sequences = [tokens(session.store, root) for root in roots]
    parts: dict[str, Any] = {"position": at}
    for side, sequence in zip("ab", sequences, strict=True):
        parts[f"token_{side}"] = next(islice(sequence, at, None), None)
        if codec:
            parts[f"text_{side}"] = codec.decode(sequence[at : at + CONTEXT_TOKENS])
    if codec:
        parts["text_before"] = codec.decode(sequences[0][max(0, at - CONTEXT_TOKENS) : at])
    return parts


def _model_differs(session: Session, roots: list[Conversation]) -> list[dict[str, object]]:
    if roots[0].model == roots[1].model:
        return []
    a, b = (Model.decode(session.store.get(root.model)) for root in roots)
    return [{"field": each.field, "a": each.a, "b": each.b} for each in diff_identity(a, b)]


def _words(parts: dict[str, Any]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("they part at", f"token {parts['position']:,}")]
    if "text_before" in parts:
        rows.append(("before", preview(parts["text_before"], PREVIEW_CHARS)))
    for side in "ab":
        token = parts[f"token_{side}"]
        text = preview(parts.get(f"text_{side}", ""), PREVIEW_CHARS)
        rows.append((f"{side} goes on", "nothing: it ends here" if token is None else f"{token}  {text}"))
    return rows
