"""`key`: one's own keys."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.errors import BadKey, Corrupt, NotFound, Refused
from ..cybergraph.private import PRIVATE_FILE, open_or_pipe
from .context import Session, pass_session
from .identities import FIRST_NAME, key_folder, open_key
from .identities import passphrase as ask
from .output import answer, facts, remark, say

if TYPE_CHECKING:
    from ..cybergraph.access import Identity

NAME = click.argument("name", default=FIRST_NAME)


@click.group()
def key() -> None:
    """Make and show your keys.

    One secret gives a key for each purpose: to sign, to read what was sealed for you, and to show that you are among
    some readers. Others need the public key that `show` prints. A passphrase is asked for on the terminal, or read from
    the file that CYBERKV_PASSPHRASE_FILE names.
    """


@key.command()
@NAME
@click.option("--passphrase", is_flag=True, help="Ask for a passphrase to keep it under.")
@pass_session
def new(session: Session, name: str, *, passphrase: bool) -> None:
    """Make a key, called `me` unless NAME is given."""
    from ..cybergraph.access import Identity, save_key

    words = ask(f"New passphrase of {name}", twice=True) if passphrase else None
    made = Identity.new()
    path = save_key(key_folder(session), name, made, words)
    _answer(session, name, made, pq=False, locked=passphrase)
    remark(session, f"its secret half is {path}: keep a copy, nothing else opens what was sealed for it")


@key.command(name="list")
@pass_session
def list_keys(session: Session) -> None:
    """List your keys."""
    from ..cybergraph.access import is_locked, key_names

    folder = key_folder(session)
    keys: list[dict[str, Any]] = []
    for name in key_names(folder):
        locked = is_locked(folder, name)
        public = None if locked else open_key(session, name).public()
        fingerprint = None if public is None else public.fingerprint
        keys.append({"name": name, "locked": locked, "fingerprint": fingerprint, "public": public and str(public)})

    def show() -> None:
        for each in keys:
            say(f"{each['name']}  {each['fingerprint'] or _asks(each['name'])}")
        if not keys:
            say("no keys: `cyberkv key new` makes one")

    answer(session, {"keys": keys}, show)


def _asks(name: str) -> str:
    """Say what there is without the passphrase: a public key that lay beside it could be exchanged unnoticed."""
    return f"under a passphrase: `cyberkv key show {name}` asks for it and shows the public key"


@key.command()
@NAME
@click.option("--pq", is_flag=True, help="With the part that withstands quantum computers: two thousand letters.")
@pass_session
def show(session: Session, name: str, *, pq: bool) -> None:
    """Print a public key, to give to others, and the key it signs as, which `publish` and `fetch` show."""
    from ..cybergraph.access import is_locked

    _answer(session, name, open_key(session, name), pq=pq, locked=is_locked(key_folder(session), name))


@key.command()
@NAME
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--plain", is_flag=True, help="Write the bare secret, without asking for a passphrase to keep it under.")
@pass_session
def export(session: Session, name: str, file: Path, *, plain: bool) -> None:
    """Write the secret key NAME to FILE, under a passphrase, to keep or to move it."""
    import os

    from ..cybergraph.access.keyfile import key_bytes

    identity = open_key(session, name)
    data = key_bytes(identity, None if plain else ask("Passphrase of the copy", twice=True))
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE)
    except FileExistsError as error:
        raise Refused(f"{file} exists", hint="choose another name", path=str(file)) from error
    except OSError as error:
        raise NotFound(f"cannot write {file}: {error.strerror}", path=str(file)) from error
    with os.fdopen(fd, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    answer(session, {"name": name, "file": file, "locked": not plain}, lambda: facts([("written", file)]))


@key.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", default=FIRST_NAME, show_default=True, help="Name to keep it under.")
@pass_session
def import_key(session: Session, file: Path, name: str) -> None:
    """Take a secret key from a FILE that `export` wrote. A passphrase stays as it is."""
    from ..cybergraph.access import save_key
    from ..cybergraph.access.keyfile import MAX_FILE_BYTES, KeyFile, opened

    try:
        with open_or_pipe(file) as source:
            content = KeyFile.decode(source.read(MAX_FILE_BYTES))
    except OSError as error:
        raise NotFound(f"cannot read {file}: {error.strerror}", path=str(file)) from error
    except Corrupt as error:
        raise BadKey(f"{file} is no key: {error}", hint="`cyberkv key export` writes one", path=str(file)) from error
    words = ask(f"Passphrase of {file.name}") if content.lock is not None else None
    identity = opened(content, name, words)
    save_key(key_folder(session), name, identity, words)
    _answer(session, name, identity, pq=False, locked=words is not None)


def _answer(session: Session, name: str, identity: "Identity", *, pq: bool, locked: bool) -> None:
    public = identity.public(pq=pq)
    data = {"name": name, "fingerprint": public.fingerprint, "public": str(public), "locked": locked}
    data["signs_as"] = signs_as = public.signing.hex()
    rows = [("key", name), ("fingerprint", public.fingerprint), ("signs as", signs_as), ("public", str(public))]
    answer(session, data, lambda: facts(rows))
