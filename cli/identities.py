"""The keys of a home, as commands use them: which one, and where its passphrase comes from."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..cybergraph.errors import BadKey, BadReference, NotFound
from ..cybergraph.private import open_or_pipe
from .context import Session
from .output import remark

if TYPE_CHECKING:
    from ..cybergraph.access import Identity, PublicIdentity
    from ..cybergraph.access.folder import AccessFolder
    from ..cybergraph.access.lineage import Lineage
    from ..cybergraph.cid import Cid

FILE_VARIABLE: Final = "CYBERKV_PASSPHRASE_FILE"
FIRST_NAME: Final = "me"
MAX_SECRET_BYTES: Final = 1024
WAITS: Final = "Another command is giving access in this home: this one waits until it is done."
MAX_FILE_CHARS: Final = 8192
"""Of a file with a public key, of which the longest has half as many."""


def key_folder(session: Session) -> Path:
    """Give the folder of the home's secret keys."""
    return session.home / "keys"


def access_folder(session: Session) -> "AccessFolder":
    """Give what the home keeps about access given and received."""
    from ..cybergraph.access.folder import AccessFolder

    return AccessFolder(session.home / "access", lambda: remark(session, WAITS))


def has_key(session: Session) -> bool:
    """Say whether this home has a key of its own."""
    from ..cybergraph.access import key_names

    return any(key_names(key_folder(session)))


def own_identity(session: Session, name: str | None) -> "Identity":
    """Open a key: the one named, else the only one or `me`; the first use of a home makes that.

    Raises `NameNotFound`, `BadKey`, and `BadReference` where it is not clear which.
    """
    from ..cybergraph.access import Identity, key_names

    if name is None:
        names = list(key_names(key_folder(session)))
        if not names:
            made = Identity.new()
            keep_first(session, made)
            return made
        name = FIRST_NAME if FIRST_NAME in names else names[0]
        if len(names) > 1 and name != FIRST_NAME:
            raise BadReference(f"which key? There are {', '.join(names)}", hint="name one with --key", names=names)
    return open_key(session, name)


def keep_first(session: Session, made: "Identity") -> None:
    """Keep the first key of a home; where there are keys, nothing is done. Raises as `save_key`."""
    from ..cybergraph.access import save_key

    if not has_key(session):
        save_key(key_folder(session), FIRST_NAME, made, None)
        remark(session, f"made the key {FIRST_NAME} ({made.public().fingerprint}), without a passphrase")


def issuer_of(session: Session, lineage: "Lineage", name: str | None) -> "Identity":
    """Open the key that signs the grants of a conversation. Raises as `own_identity` and `Lineage.check_issuer`."""
    identity = own_identity(session, name)
    lineage.check_issuer(identity.public())
    return identity


def names_to_try(session: Session) -> list[str]:
    """List the keys in the order in which to try what opens: those without a passphrase first. Raises `BadKey`."""
    from ..cybergraph.access import is_locked, key_names

    folder = key_folder(session)
    return sorted(key_names(folder), key=lambda name: is_locked(folder, name))


def open_key(session: Session, name: str) -> "Identity":
    """Open one key, asking for its passphrase if it has one. Raises as `load_key`."""
    from ..cybergraph.access import is_locked, load_key

    folder = key_folder(session)
    return load_key(folder, name, passphrase(f"Passphrase of {name}") if is_locked(folder, name) else None)


def passphrase(prompt: str, *, twice: bool = False) -> str:
    """Give what opens a key: the first line of the file that the environment names, else what is typed.

    Raises `NotFound` for a file that cannot be read, `BadKey` where there is neither a file nor a terminal.
    """
    path = Path(text) if (text := os.environ.get(FILE_VARIABLE)) else None
    return _secret(prompt, path, twice=twice, hint=f"put it into a file and name that in {FILE_VARIABLE}")


def password(path: Path | None, *, twice: bool = False) -> str:
    """Give what opens a link, which others get to know: never the passphrase of a key. Raises as `passphrase`."""
    return _secret("Password of the link", path, twice=twice, hint="put it into a file and give --password-file")


def _secret(prompt: str, path: Path | None, *, twice: bool, hint: str) -> str:
    if path is not None:
        return _first_line(path)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadKey(f"{prompt}: there is no terminal to ask on", hint=hint)
    typed: str = click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)
    return typed


def _first_line(path: Path) -> str:
    """Read a passphrase, of which no error may repeat a byte. Raises `NotFound`, `BadKey`."""
    try:
        with open_or_pipe(path) as file:
            data = file.readline(MAX_SECRET_BYTES + 2).removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise NotFound(
            f"cannot read a passphrase from {path}: {error.strerror}", hint="its first line is taken"
        ) from None
    try:
        words = data.decode()
    except UnicodeDecodeError:
        words = ""
    if not words or len(data) > MAX_SECRET_BYTES:
        raise BadKey(
            f"no passphrase in {path}", hint=f"its first line is taken: UTF-8 text of 1 to {MAX_SECRET_BYTES} bytes"
        )
    return words


def read_public(text: str) -> "PublicIdentity":
    """Read somebody's public key, from itself or from a file that holds it and no other, as `key show` prints it.

    Raises `BadReference`, `BadKey`.
    """
    from ..cybergraph.access import PublicIdentity
    from ..cybergraph.access.identity import TEXT_PREFIX

    if not text.startswith(TEXT_PREFIX) and Path(text).is_file():
        with Path(text).open(errors="replace") as file:
            content = file.read(MAX_FILE_CHARS)
        keys = {word for word in content.split() if word.startswith(TEXT_PREFIX)}  # labels stand beside what is shown
        try:
            return PublicIdentity.parse(keys.pop() if len(keys) == 1 else content)
        except BadReference:  # whose message begins with what it read: perhaps a secret key, named by mistake
            raise BadReference(f"no public key in the file {text:.80}", hint="`cyberkv key show` prints one") from None
    return PublicIdentity.parse(text)


def lineage_name(session: Session, ref: str) -> str:
    """Give the name under which access to the conversation REF is kept: its own, else the CID of its root.

    What was published under a name that stands for another conversation now is kept by CID.
    """
    from ..cybergraph.refs import resolve
    from .names import name_of_head

    cid = resolve(ref, session.index, session.store)
    name, folder = name_of_head(session.index, ref, cid), access_folder(session)
    if name is None or (folder.lineage(name) is None and folder.lineage(str(cid)) is not None):
        return str(cid)
    return name


def leave_readers(session: Session, name: str, root: "Cid") -> None:
    """Let a name that is about to stand for something else, or nothing, not take the readers of `root` along."""
    if (session.home / "access").is_dir() and access_folder(session).refile(name, str(root)):
        remark(session, f"who may read what was published of {name} is kept under {root}; the name has no readers now")
