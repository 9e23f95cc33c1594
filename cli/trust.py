"""`trust`: whose signature is good enough to go on from what they made."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.errors import BadReference, NameNotFound, NotFound, Untrusted
from .context import Session, pass_session
from .options import REF
from .output import answer, remark, say
from .text import plain

if TYPE_CHECKING:
    from ..cybergraph.access.trust import Signer, TrustFolder
    from ..cybergraph.cid import Cid

_HEX: Final = re.compile(r"[0-9a-f]{64}")
_FORMS: Final = (
    "a key is the text beginning with ckv1 that `cyberkv key show` prints, a file with it, or the 64 hexadecimal "
    "digits by which `publish`, `fetch` and `key show` name who signs"
)
KEY = click.argument("key", metavar="KEY")


def trust_folder(session: Session) -> "TrustFolder":
    """Give what the home keeps about whom it trusts."""
    from ..cybergraph.access.trust import TrustFolder

    return TrustFolder(session.home / "trust")


def read_signer(text: str) -> bytes:
    """Read an Ed25519 key: a public key as `key show` prints it, the file that holds one, or the 64 digits of `fetch`.

    Raises `BadReference`, `BadKey`.
    """
    from .identities import read_public

    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        return read_public(text).signing
    except BadReference as error:
        raise BadReference(error.message, hint=_FORMS) from None


def require_usable(session: Session, root: "Cid") -> None:
    """Refuse to go on from what came from elsewhere and nobody trusted signed. Raises `Untrusted`."""
    if not (session.home / "trust").is_dir() and not session.index.sources():
        return  # nothing ever came from elsewhere
    from ..cybergraph.access.standing import require_usable as check

    check(session.store, session.index, trust_folder(session), root)


def carry_origin(session: Session, root: "Cid", part: "Cid") -> None:
    """Let what was made of a conversation stand on the same word as that.

    Also of one that is about to be put away, such as by `lock`: then `part` is `root`. Raises as `load_root`.
    """
    if not (session.home / "trust").is_dir() and not session.index.sources():
        return
    from ..cybergraph.access.standing import carry_origin as carry

    carry(session.store, session.index, trust_folder(session), root, part)


def keep_grounds(session: Session, leaving: "Collection[Cid]") -> None:
    """Before conversations are deleted, note what those that stay have of them. Raises `Corrupt`."""
    if not (session.home / "trust").is_dir() and not session.index.sources():
        return
    from ..cybergraph.access.standing import keep_grounds as keep

    keep(session.store, session.index, trust_folder(session), leaving, session.index.roots())


def named(session: Session, signers: Iterable[bytes]) -> list[dict[str, Any]]:
    """Describe signers, with the label of those who are trusted."""
    labels = {signer.key: signer.label for signer in trust_folder(session).signers()}
    return [{"key": key.hex(), "label": labels.get(key), "trusted": key in labels} for key in signers]


def in_words(signers: Sequence[dict[str, Any]]) -> str:
    """Say who signed."""
    words = [f"{plain(each['label'])} ({each['key']})" if each["label"] else each["key"] for each in signers]
    return ", ".join(words) or "nobody"


@click.group()
def trust() -> None:
    """Say whose signed conversations may be used here.

    What was fetched may always be looked at. To go on from it, a model takes its keys and values for granted: so who
    signed it has to be trusted, or the conversation accepted with `fetch --trust unsigned`.
    """


@trust.command()
@KEY
@click.option("--label", default="", help="What to call its owner here.")
@pass_session
def add(session: Session, key: str, label: str) -> None:
    """Trust what the owner of this public key signed, and will sign.

    KEY is the text beginning with ckv1 that `cyberkv key show` prints, a file with it, or the 64 hexadecimal digits by
    which `publish`, `fetch` and `key show` name who signs.
    """
    signer = read_signer(key)
    is_new = trust_folder(session).add(signer, label)
    data = {"key": signer.hex(), "label": label, "new": is_new}
    answer(session, data, lambda: say(f"trusted  {_line(signer, label)}"))


@trust.command(name="list")
@pass_session
def list_signers(session: Session) -> None:
    """List whom this home trusts, and which conversations it accepted whoever signed them."""
    folder = trust_folder(session)
    signers = folder.signers()
    accepted = sorted(each.root for each in folder.origins() if each.accepted)
    data = {"signers": [{"key": each.key.hex(), "label": each.label} for each in signers], "accepted": accepted}

    def show() -> None:
        for each in signers:
            say(_line(each.key, each.label))
        if not signers:
            say("nobody: `cyberkv trust add KEY` changes that")
        for root in accepted:
            say(f"accepted  {root}")

    answer(session, data, show)


@trust.command()
@click.argument("key", metavar="KEY|REF", type=REF)
@pass_session
def remove(session: Session, key: str) -> None:
    """Trust a key no longer, named by itself or by its label; or take back that a conversation was accepted.

    REF is the name or CID of a conversation that was fetched with `--trust unsigned` or by a link. What came from there
    stays here, to look at, and so does what goes on from it and every fork.
    """
    folder = trust_folder(session)
    signer = _find(folder.signers(), key)
    if signer is None:
        _unaccept(session, key)
        return
    folder.remove(signer.key)
    answer(session, {"key": signer.key.hex(), "label": signer.label}, lambda: say(f"removed  {signer.key.hex()}"))
    remark(session, "what it signed stays here to look at; what goes on from that is not used any more either")


def _unaccept(session: Session, ref: str) -> None:
    from ..cybergraph.refs import resolve_root

    try:
        root = resolve_root(ref, session.index, session.store)
    except (BadReference, NotFound):
        raise NameNotFound(
            f"nobody is trusted and no conversation is known as {ref!r:.80}", hint="see `cyberkv trust list`",
            ref=ref[:80],
        ) from None  # fmt: skip
    if not trust_folder(session).unaccept(root):
        raise NameNotFound(
            f"{root} was not accepted by itself",
            hint="see `cyberkv trust list`: it may stand on another conversation, or on a signer", ref=ref[:80],
        )  # fmt: skip
    try:
        require_usable(session, root)
        is_usable = True
    except Untrusted:
        is_usable = False
    answer(session, {"root": root, "usable": is_usable}, lambda: say(f"removed  {root}"))
    if is_usable:
        remark(session, "it is still used: its blocks were computed here too, or stand on another word")
    else:
        remark(session, "it stays here to look at; what goes on from it is not used any more either")


def _find(signers: "Sequence[Signer]", text: str) -> "Signer | None":
    """Find a signer by label or key. Raises `NameNotFound` for a key that is not trusted, `BadReference`."""
    found = [each for each in signers if each.label and each.label == text]
    if not found and (_HEX.fullmatch(text) or text.startswith("ckv1") or Path(text).is_file()):
        key = read_signer(text)
        found = [each for each in signers if each.key == key]
        if not found:
            raise NameNotFound(f"nobody is trusted as {text!r:.80}", hint="see `cyberkv trust list`", ref=text[:80])
    if len(found) > 1:
        keys = [each.key.hex() for each in found]
        raise BadReference(f"{text!r:.80} is what {len(found)} signers are called", hint="give the key", keys=keys)
    return found[0] if found else None


def _line(key: bytes, label: str) -> str:
    return f"{key.hex()}  {label}".rstrip()
