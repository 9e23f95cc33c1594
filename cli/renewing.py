"""A new epoch of a conversation that was published for some: begun, and sealed at once if that was asked for."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.errors import BadReference, NameNotFound
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .consent import check_free
from .context import Session
from .identities import access_folder, issuer_of, lineage_name
from .output import answer, facts, remark
from .repinning import Repinned, repin, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cybergraph.access.lineage import Lineage


def renew(
    session: Session, ref: str, state: "Lineage", key_name: str | None, *, reencrypt: bool, car: Path | None
) -> None:
    """Keep a lineage in whose epoch all of it is to be published; with `reencrypt`, do that and end earlier epochs.

    What was done before is not done again. Raises as `publish_sealed`, and `BadReference` where a file is to be named.
    """
    from ..cybergraph.transfer.granting import keeps_ring, withdraw_earlier
    from ..cybergraph.transfer.sealed import publish_sealed

    folder, store, index = access_folder(session), session.store, session.index
    if not reencrypt or not state.roots:
        folder.keep(state)
        if not state.is_published:
            again = f"`cyberkv publish {shlex.quote(ref)} --to readers`"
            remark(session, f"epoch {state.epoch} begins with the next {again}")
        answer_grant(session, state, published=state.is_published)
        return
    if car is not None:
        check_free(car, *state.roots)
    elif state.last is not None and not store.has(state.last.manifest):
        raise BadReference(
            f"{ref} was published as a file, and is not served here", hint="name the new file with --car", name=ref
        )
    cid = resolve(ref, index, store)
    load_root(store, cid)  # what is locked cannot be sealed again: no epoch begins
    issuer = issuer_of(session, state, key_name)
    folder.keep(state)
    try:
        with block_bars(session) as progress:
            state, _ = publish_sealed(
                store, index, cid, state, issuer, progress, car, ring=keeps_ring(state), known=folder.grant(state),
                keep=folder.keep_published,
            )  # fmt: skip
            withdraw_earlier(store, index, state)
            state, repinned = repin(session, ref, state, progress)
    except KeyboardInterrupt:
        raise click.Abort(
            f"epoch {state.epoch} has begun, and what was published before is served still: "
            f"`cyberkv grant rotate {shlex.quote(ref)} --reencrypt` seals it again"
        ) from None
    answer_grant(session, state, published=True, car=car, repinned=repinned)


def lineage_of(session: Session, ref: str, *, newest: bool = True) -> "Lineage":
    """Give what is kept about the conversation REF. Raises `NameNotFound`, and `Refused` for an old copy of it."""
    folder = access_folder(session)
    if (state := folder.lineage(lineage_name(session, ref))) is None:
        raise NameNotFound(
            f"{ref} was not published for some",
            hint=f"`cyberkv publish {shlex.quote(ref)} --to KEY` does that",
            name=ref,
        )
    if newest:
        folder.check_newest(state)
    return state


def answer_grant(
    session: Session,
    state: "Lineage",
    *,
    published: bool,
    car: Path | None = None,
    repinned: "Sequence[Repinned]" = (),
) -> None:
    """Say who has access now, and where."""
    root = next(iter(state.roots), None)
    url = None if car is None else car.resolve().as_uri()
    data: dict[str, Any] = {
        "name": state.name, "epoch": state.epoch, "root": root, "published": published,
        "readers": [{"label": each.label, "fingerprint": each.identity().fingerprint} for each in state.readers],
        "urls": [url] if url else [], "kubo": shown(repinned),
    }  # fmt: skip
    rows = [
        ("conversation", state.name), ("epoch", state.epoch), ("readers", len(state.readers)),
        ("address", root if published else None), ("at", url),
        *(("unpinned on", each.node) for each in repinned if each.failed is None),
    ]  # fmt: skip
    answer(session, data, lambda: facts(rows))
