"""`lock` and `unlock`: keep a conversation sealed in its own home."""

from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.errors import BadReference, Corrupt, NotFound, Refused, TierFull
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session, pass_session
from .identities import access_folder, key_folder, open_key, own_identity
from .names import name_of_head
from .options import REF
from .output import answer, facts, remark
from .sealed import open_by_any
from .text import count, size
from .trust import carry_origin, keep_grounds
from .writers import require_alone

if TYPE_CHECKING:
    from ..cybergraph.access.owners import LockedFolder
    from ..cybergraph.cid import Cid

LEFT: Final = (
    "The name stays readable, and so does what other conversations share with it. What a disk keeps of deleted bytes, "
    "and copies elsewhere, are out of reach."
)
KEY = click.option("--key", "key_name", metavar="NAME", help="Key to seal it for; needed where there are several.")
OWN_KEY = click.option("--key", "key_name", metavar="NAME", help="Key that opens it; else all are tried.")


@click.command()
@click.argument("ref", type=REF)
@KEY
@click.option("--weak", is_flag=True, help="Allow a key without a passphrase, which opens it for whoever has the home.")
@pass_session
def lock(session: Session, ref: str, *, key_name: str | None, weak: bool) -> None:
    """Keep a conversation sealed in this home, until `unlock`.

    It is sealed for a key of yours, which should have a passphrase (`cyberkv key new NAME --passphrase`), and its
    plaintext is deleted, as far as no other conversation needs it. Earlier roots of its name are given up. While
    another process records here, as `serve --chat` does all the time, nothing is sealed: the plaintext would stay.
    """
    from ..cybergraph.access import is_locked, key_names
    from ..cybergraph.access.aead import AES_256_GCM
    from ..cybergraph.access.lineage import Lineage
    from ..cybergraph.access.owners import Owners
    from ..cybergraph.keeping.gc import collect
    from ..cybergraph.keeping.traces import Traces
    from ..cybergraph.transfer.sealed import publish_sealed

    session.open_to_write()
    cid, name = _named(session, ref)
    if session.index.is_public(cid):
        raise Refused(
            f"{name} was published: to lock it here would keep nothing private",
            hint="nothing calls back what is public; record it anew, under another name, to have one that was not",
            name=name,
        )
    if not weak and _was_given(session, name):
        raise Refused(
            f"{name} was published for some, and the key that opens that lies in this home",
            hint="--weak locks it here all the same", name=name,
        )  # fmt: skip
    names = [key_name] if key_name else list(key_names(key_folder(session)))
    if not weak and not (names and all(is_locked(key_folder(session), each) for each in names)):
        raise Refused(
            "a key without a passphrase lies beside what it would lock",
            hint="`cyberkv key new safe --passphrase`, then lock with --key safe; or allow it with --weak", name=name,
        )  # fmt: skip
    _require_no_document(session, name)
    require_alone(session, f"the plaintext of {name} could not be deleted meanwhile")
    identity = own_identity(session, key_name)
    begun = Lineage.begin(name, identity.public().signing, session.now(), alg=AES_256_GCM, kem="x25519")
    with block_bars(session) as progress:
        _, report = publish_sealed(session.store, session.index, cid, begun, identity, progress, public=False)
    _locked_folder(session).keep(report.root, Owners.of(session.store, session.index, cid))
    session.index.begin_anew(name, cid, report.root, session.now())
    traces = Traces(session.home)
    try:
        carry_origin(session, cid, cid)  # of what is sealed no block shows any more where it came from
        traces.expect()
        garbage, _ = collect(session.store, session.index, lambda found: keep_grounds(session, found.conversations))
    except (Refused, NotFound, Corrupt) as error:
        raise type(error)(
            f"{name} is sealed, but its plaintext is still here: {error.message}",
            hint="`cyberkv gc` deletes it once that is over", **{**error.data, "sealed_as": str(report.root),
            "plaintext_left": str(cid)},
        ) from error  # fmt: skip
    try:
        traces.overwrite(session.store, session.index)
    except TierFull as error:
        raise TierFull(
            f"{name} is locked, but its files keep traces of it still: {error.message}",
            hint="free some space, then run `cyberkv gc`", **error.data,
        ) from error  # fmt: skip
    data: dict[str, Any] = {
        "name": name, "root": report.root, "objects": len(report.cids), "bytes": report.bytes,
        "deleted": len(garbage.nodes) + len(garbage.leaves),
        "plaintext_left": str(cid) if session.store.has(cid) else None,
    }  # fmt: skip
    sealed = f"{count(len(report.cids), 'object')}, {size(report.bytes)}"
    answer(session, data, lambda: facts([("locked", name), ("as", report.root), ("sealed", sealed)]))
    if data["plaintext_left"]:
        remark(session, f"its plaintext is still here, too: a pin, another name or its log holds {cid}")
    remark(session, LEFT)


@click.command()
@click.argument("ref", type=REF)
@OWN_KEY
@pass_session
def unlock(session: Session, ref: str, *, key_name: str | None) -> None:
    """Open a conversation that was locked here. Its blocks count as they did before: one's own are one's own."""
    from ..cybergraph.access import open_grant
    from ..cybergraph.keeping.gc import collect
    from ..cybergraph.nodes import Sealed, decode_node
    from ..cybergraph.peers.local import StorePeer
    from ..cybergraph.transfer.fetch_sealed import fetch_sealed

    session.open_to_write()
    cid, name = _named(session, ref)
    if cid.codec == "raw" or not isinstance(decode_node(session.store.get(cid)), Sealed):
        raise BadReference(f"{name} is not locked", hint="see `cyberkv list`", name=name)
    owners = _locked_folder(session).owners(cid)
    identity = None if key_name is None else open_key(session, key_name)
    with block_bars(session) as progress, StorePeer(session.store) as peer:
        report = fetch_sealed(
            session.store, session.index, cid, [peer],
            lambda _, grant: open_by_any(session, grant)[1] if identity is None else open_grant(grant, identity),
            progress=progress,
            attribute=False,  # that it was sealed here says nothing of who computed it
        )  # fmt: skip
    owners.give_back(session.store, session.index, report.root)
    session.index.begin_anew(name, cid, report.root, session.now())
    _locked_folder(session).forget(cid)
    try:
        collect(session.store, session.index, lambda found: keep_grounds(session, found.conversations))
    except (Refused, NotFound, Corrupt) as error:
        remark(session, f"the sealed copy goes with the next `cyberkv gc`: {error.message}")
    answer(session, {"name": name, "root": report.root}, lambda: facts([("unlocked", name), ("root", report.root)]))


def drop_notes(session: Session) -> None:
    """Remove what is kept about locked conversations that nothing holds any more."""
    if (session.home / "access" / "locked").is_dir():
        _locked_folder(session).keep_only(session.index.roots())


def _locked_folder(session: Session) -> "LockedFolder":
    from ..cybergraph.access.owners import LockedFolder

    return LockedFolder(session.home / "access" / "locked")


def _require_no_document(session: Session, name: str) -> None:
    """Refuse what is a document, too: its text, and vectors of what it says, are kept beside the conversation."""
    for head in session.index.log(name):
        if any((session.home / "documents").glob(f"{head.root}.*")):
            raise Refused(
                f"{name} is a document, whose text is kept here in any case",
                hint=f"`cyberkv document remove {head.root}`, then lock", name=name, root=str(head.root),
            )  # fmt: skip


def _was_given(session: Session, name: str) -> bool:
    names = (name, *(str(head.root) for head in session.index.log(name)))
    return any(access_folder(session).lineage(each) for each in names)


def _named(session: Session, ref: str) -> "tuple[Cid, str]":
    cid = resolve(ref, session.index, session.store)
    if (name := name_of_head(session.index, ref, cid)) is None:
        raise NotFound(f"no name ends at {cid}", hint="see `cyberkv list`", cid=str(cid))
    return cid, name
