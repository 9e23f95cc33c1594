"""`grant`: who may read what was published for some."""

import shlex
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.chain import load_root
from ..cybergraph.errors import NameNotFound
from .block_bars import block_bars
from .context import Session, pass_session
from .identities import access_folder, issuer_of, lineage_name, read_public
from .options import REF, TEXT
from .output import answer, facts, remark, say, table
from .text import count

if TYPE_CHECKING:
    from ..cybergraph.access.lineage import Lineage

REVOKED: Final = (
    "Revocation stops future epochs. It cannot recall what was fetched, nor ciphertext that others have pinned."
)
REENCRYPT = click.option(
    "--reencrypt", is_flag=True,
    help="Seal all of it again under the new key, and serve the old here no longer. A Kubo node keeps what it has "
    "pinned until `ipfs pin rm`.",
)  # fmt: skip
KEY = click.option("--key", "key_name", metavar="NAME", help="Own key that signs; needed where there are several.")


@click.group()
def grant() -> None:
    """Say who may read a conversation that was published for some.

    `publish REF --to KEY` begins it. A grant names no reader: who they are is known in this home alone.
    """


@grant.command()
@click.argument("ref", type=REF)
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@click.option("--label", type=TEXT, help="What to call the reader here; else the key's fingerprint.")
@KEY
@pass_session
def add(session: Session, ref: str, keys: tuple[str, ...], label: str | None, key_name: str | None) -> None:
    """Let the owner of KEY read what was published, and what follows.

    KEY is the text that `cyberkv key show` prints, or a file with it. Nothing is sealed again: the new address holds
    one more wrapped key.
    """
    from ..cybergraph.nodes import Sealed
    from ..cybergraph.transfer.sealed import grant_access, keeps_ring

    session.open_to_write()
    added = [read_public(text) for text in keys]
    folder, is_published = access_folder(session), False
    with folder.giving():
        state = _lineage(session, ref)
        for public in added:
            state = state.with_reader(label or public.fingerprint, public)
        sealed = None if state.sealed is None else Sealed.decode(session.store.get(state.sealed))
        if sealed is not None and sealed.epoch == state.epoch:
            issuer, ring = issuer_of(session, state, key_name), keeps_ring(session.store, state)
            folder.keep(state)  # the list first: nobody has access who is not on it
            state = grant_access(session.store, session.index, state, issuer, sealed.manifest, sealed.pinset, ring=ring)
            is_published = True
        elif sealed is not None:
            remark(
                session,
                f"epoch {state.epoch} is not published yet: `cyberkv publish {shlex.quote(ref)} --to readers` does it",
            )
        folder.keep(state)
    _answer(session, state, published=is_published)


@grant.command()
@click.argument("ref", type=REF)
@click.argument("who", metavar="READER")
@REENCRYPT
@KEY
@pass_session
def revoke(session: Session, ref: str, who: str, *, reencrypt: bool, key_name: str | None) -> None:
    """Keep READER out of what is published from now on.

    READER is a label, fingerprint or key of `grant list`. The next `publish` seals under a new key, which the others
    get. Revocation stops future epochs. It cannot recall what was fetched, nor ciphertext that others have pinned.
    """
    session.open_to_write()
    with access_folder(session).giving():
        state = _lineage(session, ref).without_reader(who, session.now())
        _renewed(session, ref, state, key_name, reencrypt=reencrypt)
    remark(session, REVOKED)


@grant.command()
@click.argument("ref", type=REF)
@click.option("--older-than", metavar="DAYS", type=click.IntRange(min=0), help="Only if the key is older than that.")
@REENCRYPT
@KEY
@pass_session
def rotate(session: Session, ref: str, *, older_than: int | None, reencrypt: bool, key_name: str | None) -> None:
    """Begin a new epoch, with a new key for the same readers."""
    session.open_to_write()
    with access_folder(session).giving():
        state = _lineage(session, ref)
        age = datetime.fromisoformat(session.now()) - datetime.fromisoformat(state.started)
        if older_than is not None and timedelta() <= age < timedelta(days=older_than):  # one begun in the future is due
            remark(session, f"the key of epoch {state.epoch} is {count(age.days, 'day')} old: nothing to do")
            _answer(session, state, published=False)
            return
        _renewed(session, ref, state.rotated(session.now()), key_name, reencrypt=reencrypt)


@grant.command(name="list")
@click.argument("ref", type=REF, required=False)
@pass_session
def list_grants(session: Session, ref: str | None) -> None:
    """List who has access to REF, or what access is given to.

    This is known here alone: a grant names nobody.
    """
    session.require_home()
    states = list(access_folder(session).lineages()) if ref is None else [_lineage(session, ref)]
    rows: list[dict[str, Any]] = [
        {
            "name": state.name, "epoch": state.epoch, "started": state.started, "sealed": state.sealed,
            "published": _is_published(session, state),
            "readers": [{"label": each.label, "fingerprint": each.identity().fingerprint} for each in state.readers],
        }
        for state in states
    ]  # fmt: skip

    def show() -> None:
        for row in rows:
            old = f", an epoch before is {row['sealed']}" if row["sealed"] else ""
            address = row["sealed"] if row["published"] else f"not published yet{old}"
            say(f"{row['name']}  epoch {row['epoch']} since {row['started']}  {address}")
            table(["reader", "fingerprint"], [(each["label"], each["fingerprint"]) for each in row["readers"]])
        if not rows:
            say("nothing was published for some")

    answer(session, {"grants": rows}, show)


def _is_published(session: Session, state: "Lineage") -> bool:
    """Say whether the newest epoch was published; what was published last may be of one before."""
    from ..cybergraph.nodes import Sealed

    if state.sealed is None or not session.store.has(state.sealed):
        return False
    return Sealed.decode(session.store.get(state.sealed)).epoch == state.epoch


def _renewed(session: Session, ref: str, state: "Lineage", key_name: str | None, *, reencrypt: bool) -> None:
    from ..cybergraph.refs import resolve
    from ..cybergraph.transfer.sealed import keeps_ring, publish_sealed, withdraw_earlier

    if not reencrypt or state.sealed is None:
        access_folder(session).keep(state)
        remark(session, f"epoch {state.epoch} begins with the next `cyberkv publish {shlex.quote(ref)} --to readers`")
        _answer(session, state, published=False)
        return
    cid = resolve(ref, session.index, session.store)
    load_root(session.store, cid)  # what is locked cannot be sealed again: no epoch begins
    issuer = issuer_of(session, state, key_name)
    access_folder(session).keep(state)
    try:
        with block_bars(session) as progress:
            ring = keeps_ring(session.store, state)
            state, _ = publish_sealed(session.store, session.index, cid, state, issuer, progress, ring=ring)
        access_folder(session).keep(state)
        withdraw_earlier(session.store, session.index, state)
    except KeyboardInterrupt:
        raise click.Abort(
            f"epoch {state.epoch} has begun, and what was published before is served still: "
            f"`cyberkv grant rotate {shlex.quote(ref)} --reencrypt` seals it again"
        ) from None
    _answer(session, state, published=True)


def _lineage(session: Session, ref: str) -> "Lineage":
    """Give what is kept about the conversation REF. Raises `NameNotFound`."""
    if (state := access_folder(session).lineage(lineage_name(session, ref))) is None:
        raise NameNotFound(
            f"{ref} was not published for some",
            hint=f"`cyberkv publish {shlex.quote(ref)} --to KEY` does that",
            name=ref,
        )
    return state


def _answer(session: Session, state: "Lineage", *, published: bool) -> None:
    data: dict[str, Any] = {
        "name": state.name, "epoch": state.epoch, "root": state.sealed, "published": published,
        "readers": [{"label": each.label, "fingerprint": each.identity().fingerprint} for each in state.readers],
    }  # fmt: skip
    rows = [
        ("conversation", state.name), ("epoch", state.epoch), ("readers", len(state.readers)),
        ("address", state.sealed if published else None),
    ]  # fmt: skip
    answer(session, data, lambda: facts(rows))
