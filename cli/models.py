"""Which model a command means."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import (
    BadReference,
    CyberKVError,
    IdentityMismatch,
    NameNotFound,
    NotFound,
    UnsupportedModel,
)
from ..cybergraph.identity import diff
from ..cybergraph.nodes import Conversation, Model
from ..cybergraph.refs import resolve
from .context import Session
from .output import remark

if TYPE_CHECKING:
    from ..runtime.models.record import ModelRecord
    from ..runtime.models.tokenizer import TextCodec

NONE_REGISTERED = "`cyberkv model add smollm2` registers the built-in model, `cyberkv model add PATH` any other"

_SMOLLM2_SHAPE = (30, 576, 9, 3, 64)
"""Layers, hidden size, heads, KV heads and head dimension of the built-in model."""


class KnownModel(NamedTuple):
    """A model identity, registered here or only met in a conversation."""

    name: str | None
    cid: Cid
    identity: Model


def find_model(session: Session, ref: str) -> KnownModel:
    """Find an identity by the name of a registered model, by CID, or by a conversation made with it."""
    try:
        record = session.registry.find(ref)
    except NameNotFound as unknown:
        if not session.has_home:
            raise
        try:
            node_cid = resolve(ref, session.index, session.store)
        except NameNotFound:
            raise unknown from None
    else:
        return KnownModel(record.name, record.cid, record.identity)
    return _from_node(session, node_cid)


def _from_node(session: Session, cid: Cid) -> KnownModel:
    from ..cybergraph.nodes import decode_node

    node = None if cid.codec == "raw" else decode_node(session.store.get(cid))
    if isinstance(node, Conversation):
        cid = node.model
        node = decode_node(session.store.get(cid))
    if not isinstance(node, Model):
        raise BadReference(
            f"{cid} is a {node.TYPE if node else 'leaf'}, not a model",
            hint="give the name or CID of a model; `cyberkv model list` has them",
            cid=str(cid),
        )
    return KnownModel(name_of_model(session, cid), cid, node)


def name_of_model(session: Session, cid: Cid) -> str | None:
    """Give the name under which a model is registered here."""
    return next((record.name for record in readable_records(session) if record.cid == cid), None)


def names_of_models(session: Session) -> "Callable[[str], str | None]":
    """Give what names a model by its CID: as registered here, or as that in blocks of another size, as of documents."""
    records = readable_records(session)

    @cache
    def name_of(cid: str) -> str | None:
        for record in records:
            if str(record.cid) == cid:
                return record.name
        try:
            model = Model.decode(session.store.get(Cid.parse(cid)))
        except CyberKVError:
            return None
        size, group = model.block_size, model.layers_per_leaf
        for record in records:
            if replace(record.identity, block_size=size, layers_per_leaf=group) == model:
                return f"{record.name} in blocks of {size}"
        return None

    return name_of


def readable_records(session: Session) -> "list[ModelRecord]":
    """List the registered models for what can do without; a damaged record is a remark."""
    try:
        return session.registry.records()
    except CyberKVError as error:
        remark(session, f"models: {error.message}")
        return []


def choose_model(session: Session, ref: str | None, root: Conversation | None) -> "ModelRecord":
    """Choose the registered model to run: the one named, else the conversation's, else the only one."""
    if ref is not None:
        return session.registry.find(ref)
    records = session.registry.records()
    if not records:
        raise NotFound("no model is registered here", hint=NONE_REGISTERED)
    if root is not None:
        return _same_model(session, records, root)
    if len({record.cid for record in records}) > 1:
        names = ", ".join(record.name for record in records)
        raise click.UsageError(f"several models are registered; choose one with --model: {names}")
    return records[0]


def _same_model(session: Session, records: "list[ModelRecord]", root: Conversation) -> "ModelRecord":
    for record in records:
        if record.cid == root.model:
            return record
    raise not_registered(records, "the conversation was made with", Model.decode(session.store.get(root.model)))


def not_registered(records: "list[ModelRecord]", made_with: str, wanted: Model) -> CyberKVError:
    """Build the error for a model that is not among `records`: it names the first axis of the nearest of them."""
    if not records:
        return NotFound(f"{made_with} model {wanted.cid()}, and none is registered here", hint=how_to_register(wanted))
    nearest = min(records, key=lambda record: len(diff(wanted, record.identity)))
    first = diff(wanted, nearest.identity)[0]
    return IdentityMismatch(
        f"{made_with} model {wanted.cid()}, which is not registered here; "
        f"{nearest.name} differs in {first.field!r}: expected {first.a!s:.80}, got {first.b!s:.80}",
        hint=f"register the model it was made with: {how_to_register(wanted)}",
        field=first.field,
        expected=first.a,
        got=first.b,
    )


def how_to_register(model: Model) -> str:
    """Say which command registers a model that is met in a conversation, with the options that make its identity."""
    from ..runtime.models.options import flags

    options = flags(model)
    shape = model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim
    if shape == _SMOLLM2_SHAPE:
        return f"`cyberkv model add smollm2{options}`, if it is the built-in one, as its shape says"
    return f"`cyberkv model add PATH{options}`, with its safetensors folder or GGUF file"


def find_codec(session: Session, model: Cid) -> "TextCodec | None":
    """Give the tokenizer of a model that is registered here, in whatever block size, without its weights.

    None if there is none.
    """
    for record in _same_tokens(session, model):
        try:
            return session.registry.text(record)
        except CyberKVError as error:
            remark(session, f"no text: {error.message}")
    return None


def _same_tokens(session: Session, model: Cid) -> "list[ModelRecord]":
    """List the registered models with the tokenizer of a model: itself, else others, as for documents."""
    records = readable_records(session)
    if same := [record for record in records if record.cid == model]:
        return same
    if not records or not session.has_home:
        return []
    try:
        tokenizer = Model.decode(session.store.get(model)).tokenizer
    except CyberKVError:
        return []
    return [record for record in records if record.identity.tokenizer == tokenizer]


def need_codec(codec: "TextCodec | None", name: str) -> "TextCodec":
    """Give the tokenizer. Raises `UnsupportedModel` for a model that takes tokens only."""
    if codec is None:
        raise UnsupportedModel(
            f"model {name} has no tokenizer, so it takes no text",
            hint="put its tokenizer.json into the model folder and add it again",
            field="tokenizer", got="none",
        )  # fmt: skip
    return codec
