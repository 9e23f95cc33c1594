"""The page of a model's identity: every axis that decides the bytes of its KV cache."""

from dataclasses import fields
from itertools import groupby
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...cid import Cid
from ...leafsize import head_row_bytes
from ...nodes import Model, Rope
from .place import Place
from .render import page
from .sources import Sources

MOST_CONVERSATIONS: Final = 20
_GROUPS: Final = (
    ("Where it comes from", ("weights", "adapters", "tokenizer", "chat_template")),
    ("Shape", ("architecture", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")),
    ("Attention", ("attention", "rope", "qk_norm", "scale", "logit_softcap")),
    ("Arithmetic", ("activation", "norm_eps", "rule")),
    ("How its KV cache is stored", (
        "kv_dtype", "kv_quant_scheme", "block_size", "layers_per_leaf", "position_anchor_mode", "leaf_hash",
    )),
)  # fmt: skip


def model_page(sources: Sources, request: Request, cid: Cid, model: Model, place: Place) -> Response:
    """Show a model's identity and the conversations made with it."""
    known, more_known = sources.known()
    made = [(other, root) for other, root in known if root.model == cid]
    groups = [(words, [row for name in names for row in _rows(model, name)]) for words, names in _GROUPS]
    return page(
        request, "model.html", cid=cid, model=model, place=place, groups=groups, more_known=more_known,
        made=made[:MOST_CONVERSATIONS], more_made=max(len(made) - MOST_CONVERSATIONS, 0),
        token_bytes=token_bytes(model),
    )  # fmt: skip


def token_bytes(model: Model) -> int:
    """Give the bytes of K and V of one token in all layers."""
    row = head_row_bytes(model.head_dim, model.kv_dtype, model.kv_quant_scheme)
    return 2 * model.num_layers * model.num_kv_heads * row


def _rows(model: Model, name: str) -> list[tuple[str, str]]:
    value = getattr(model, name)
    if isinstance(value, Rope):
        return [(f"{name}.{field.name}", _words(getattr(value, field.name))) for field in fields(value)]
    return [(name, _words(value))]


def _words(value: object) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return "yes" if value else "no"
        case tuple() if all(isinstance(item, str) for item in value):
            return ", ".join(_run(item, len(list(run))) for item, run in groupby(value))
        case tuple():
            return ", ".join(f"{key}: {item}" for key, item in value)
    return str(value)


def _run(item: str, times: int) -> str:
    return f"{item} \u00d7 {times}" if times > 1 else item
