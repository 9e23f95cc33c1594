"""`grant`: who may read what was published for some."""

import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.errors import Refused
from .context import Session, pass_session
from .identities import access_folder, issuer_of, read_public
from .options import REF, TEXT
from .output import answer, remark, say, table
from .renewing import answer_grant, lineage_of, renew
from .text import count

if TYPE_CHECKING:
    from ..cybergraph.access.lineage import Lineage

REVOKED: Final = (
    "Revocation stops future epochs. It cannot recall what was fetched, nor ciphertext that others have pinned."
)
REENCRYPT = click.option(
    "--reencrypt", is_flag=True,
    help="Seal all of it again under the new key, and serve the old here no longer. Kubo nodes on which `publish` "
    "pinned the old get the new, and unpin the old; for one that cannot be reached it is said what to type.",
)  # fmt: skip
NEW_CAR = click.option(
    "--car", "car", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="With --reencrypt: write a CAR file instead of adding to what `serve` serves; what was published so needs it.",
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
@click.option(
    "--car", "car", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the new address and its grant to a new CAR file, beside the one that `publish --car` wrote.",
)  # fmt: skip
@KEY
@pass_session
def add(
    session: Session, ref: str, keys: tuple[str, ...], *, label: str | None, car: Path | None, key_name: str | None
) -> None:
    """Let the owner of KEY read what was published, and what follows.

    KEY is the text that `cyberkv key show` prints, or a file with it. Nothing is sealed again: the new address holds
    one more wrapped key. What was published as a file stays in that file, and `--car` writes a second, of a few hundred
    bytes: `fetch` takes both.
    """
    from ..cybergraph.transfer.granting import grant_access, keeps_ring

    session.open_to_write()
    added = [read_public(text) for text in keys]
    folder, is_published = access_folder(session), False
    if car is not None and car.exists():
        raise Refused(
            f"{car} exists, and only what is new would be in it",
            hint=f"choose another name; `cyberkv publish {shlex.quote(ref)} --to readers --car FILE` writes all of it",
            path=str(car),
        )  # fmt: skip
    with folder.giving():
        state = lineage_of(session, ref)
        for public in added:
            state = state.with_reader(label or public.fingerprint, public)
        last = state.last
        if last is not None and state.is_published and (car is not None or session.store.has(last.manifest)):
            issuer = issuer_of(session, state, key_name)
            folder.keep(state)  # the list first: nobody has access who is not on it
            state = grant_access(
                session.store, session.index, state, issuer, ring=keeps_ring(state), known=folder.grant(state),
                keep=folder.keep_published, car=car,
            )  # fmt: skip
            is_published = True
        else:
            folder.keep(state)
            if state.roots:
                remark(session, _not_yet(ref, as_file=state.is_published))
    answer_grant(session, state, published=is_published, car=car if is_published else None)


def _not_yet(ref: str, *, as_file: bool) -> str:
    again = f"`cyberkv publish {shlex.quote(ref)} --to readers"
    if as_file:
        return f"it is published in a file: {again} --car FILE` writes it anew; --car here, what is new alone"
    return f"the epoch is not published yet: {again}` does it"


@grant.command()
@click.argument("ref", type=REF)
@click.argument("who", metavar="READER")
@REENCRYPT
@NEW_CAR
@KEY
@pass_session
def revoke(session: Session, ref: str, who: str, *, reencrypt: bool, car: Path | None, key_name: str | None) -> None:
    """Keep READER out of what is published from now on.

    READER is a label or fingerprint of `grant list`, or a key, also in a file, as for `grant add`. The next `publish`
    seals under a new key, which the others get. Revocation stops future epochs. It cannot recall what was fetched, nor
    ciphertext that others have pinned. If it was stopped half way, the same command goes on.
    """
    _check_car(car, reencrypt=reencrypt)
    session.open_to_write()
    with access_folder(session).giving():
        before = lineage_of(session, ref)
        who = _reader(before, who)
        state = before.without_reader(who, session.now())
        if state is before:
            remark(session, f"{who:.80} is no reader since epoch {state.epoch} began: this goes on with it")
        renew(session, ref, state, key_name, reencrypt=reencrypt, car=car)
    remark(session, REVOKED)


def _reader(state: "Lineage", who: str) -> str:
    """Give what a reader is called, in place of the file that holds the key. Raises as `read_public`."""
    listed = (*state.readers, *([state.removed] if state.removed else []))
    if any(each.is_called(who) for each in listed) or not Path(who).is_file():
        return who
    return read_public(who).fingerprint


@grant.command()
@click.argument("ref", type=REF)
@click.option("--older-than", metavar="DAYS", type=click.IntRange(min=0), help="Only if the key is older than that.")
@REENCRYPT
@NEW_CAR
@KEY
@pass_session
def rotate(
    session: Session, ref: str, *, older_than: int | None, reencrypt: bool, car: Path | None, key_name: str | None
) -> None:
    """Begin a new epoch, with a new key for the same readers.

    With `--reencrypt`, an epoch that has begun already and was not published is the one that is sealed.
    """
    _check_car(car, reencrypt=reencrypt)
    session.open_to_write()
    folder = access_folder(session)
    with folder.giving():
        state, is_newest = lineage_of(session, ref, newest=False), True
        try:
            folder.check_newest(state)
        except Refused as error:  # its epochs are used up; the next is not
            is_newest = False
            remark(session, f"{error.message}: look at its readers")
        begun = is_newest and reencrypt and bool(state.roots) and not state.is_published
        age = datetime.fromisoformat(session.now()) - datetime.fromisoformat(state.started)
        young = older_than is not None and timedelta() <= age < timedelta(days=older_than)  # begun in the future: due
        if young and not begun:
            remark(session, f"the key of epoch {state.epoch} is {count(age.days, 'day')} old: nothing to do")
            answer_grant(session, state, published=False)
            return
        if not begun:
            state = state.rotated(session.now(), folder.seen_epoch(state))
        renew(session, ref, state, key_name, reencrypt=reencrypt, car=car)


def _check_car(car: Path | None, *, reencrypt: bool) -> None:
    if car is not None and not reencrypt:
        raise click.UsageError("--car belongs to --reencrypt: without it nothing is sealed")


@grant.command(name="list")
@click.argument("ref", type=REF, required=False)
@pass_session
def list_grants(session: Session, ref: str | None) -> None:
    """List who has access to REF, or what access is given to.

    This is known here alone: a grant names nobody.
    """
    session.require_home()
    states = list(access_folder(session).lineages()) if ref is None else [lineage_of(session, ref, newest=False)]
    rows: list[dict[str, Any]] = [
        {
            "name": state.name, "epoch": state.epoch, "started": state.started, "sealed": next(iter(state.roots), None),
            "published": state.is_published,
            "readers": [{"label": each.label, "fingerprint": each.identity().fingerprint} for each in state.readers],
        }
        for state in states
    ]  # fmt: skip

    def show() -> None:
        for row in rows:
            old = f", an epoch before is {row['sealed']}" if row["sealed"] else ""
            address = row["sealed"] if row["published"] else f"not published yet{old}"
            say(f"{row['name']}  epoch {row['epoch']} since {row['started']}  {address}")
            table(
                ["reader", "fingerprint"],
                [
                    (each["label"] if each["label"] != each["fingerprint"] else "no label", each["fingerprint"])
                    for each in row["readers"]
                ],
            )
        if not rows:
            say("nothing was published for some")

    answer(session, {"grants": rows}, show)
