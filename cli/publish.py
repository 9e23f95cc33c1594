"""`publish`: make a conversation readable for everybody, or for some."""

from pathlib import Path
from typing import Final

import click

from ..cybergraph.peers.kubo.address import DEFAULT_ADDRESS
from .audience import Audience
from .context import Session, pass_session
from .options import REF
from .publish_public import Wish, publish_for_all
from .publish_sealed import publish_for

CIPHERS: Final = ("aes-256-gcm", "chacha20-poly1305")


@click.command()
@click.argument("ref", type=REF)
@click.option("--public", is_flag=True, help="Let anyone read it, for good. Without this nothing is published.")
@click.option(
    "--to", "to", metavar="KEY", multiple=True,
    help="Let the owner of this public key read it (or of the key in this file); several times for several. "
    "`readers` stands for those who have access already.",
)  # fmt: skip
@click.option("--link", is_flag=True, help="Print a link that lets whoever has it read.")
@click.option("--password", is_flag=True, help="Ask for a password for the link.")
@click.option(
    "--password-file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Take the link's password from the first line of FILE.",
)  # fmt: skip
@click.option("--pq", is_flag=True, help="Wrap keys so that a quantum computer does not open them either.")
@click.option(
    "--cipher", type=click.Choice(CIPHERS),
    help="What --to and --link seal with; the default is aes-256-gcm, and the other for processors without AES. A "
    "conversation keeps its own.",
)  # fmt: skip
@click.option(
    "--ring", is_flag=True,
    help="Publish the readers' ring keys, too, so that one of them can show to be one, and hide which. Whoever has a "
    "key can then test whether it is among them, of those added later as well; needs 4 readers with you.",
)  # fmt: skip
@click.option("--key", "key_name", metavar="NAME", help="Own key that signs; needed where there are several.")
@click.option(
    "--sign/--no-sign", default=None,
    help="Sign what --public publishes, so that others may go on from it; the default where this home has a key.",
)  # fmt: skip
@click.option(
    "--car", "car", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write a CAR file instead of adding to what `serve` serves.",
)  # fmt: skip
@click.option(
    "--kubo", metavar="[URL]", is_flag=False, flag_value=DEFAULT_ADDRESS,
    help=f"Send it to a Kubo node and pin it there, by the address of its RPC; alone, {DEFAULT_ADDRESS}.",
)  # fmt: skip
@click.option(
    "--reprefill",
    is_flag=True,
    help="Where public tokens come after private ones, compute them again without those, as a new conversation.",
)
@click.option("--dry-run", is_flag=True, help="Show everything that --public would make public, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@pass_session
def publish(
    session: Session,
    ref: str,
    *,
    public: bool,
    to: tuple[str, ...],
    link: bool,
    password: bool,
    password_file: Path | None,
    pq: bool,
    cipher: str | None,
    ring: bool,
    key_name: str | None,
    sign: bool | None,
    car: Path | None,
    kubo: str | None,
    reprefill: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make a conversation readable for everybody or for some.

    Conversations are private until this command says otherwise. With `--public` it shows the text and counts the
    objects that become readable by anyone, and asks. Then `cyberkv serve` serves them, or FILE holds them, or a Kubo
    node has them pinned. An existing FILE is replaced only if it holds this same root, or with `--to` and `--link` an
    earlier one of this conversation. An upload to a node that was stopped goes on where it stopped; the node's
    credential, if it wants one, is read from CYBERKV_KUBO_AUTH (`bearer:TOKEN` or `basic:USER:PASSWORD`) or from the
    file named by CYBERKV_KUBO_AUTH_FILE. `--dry-run` needs no other option: it shows what would become public, with
    --json the whole text and every CID, and changes nothing.

    Of a conversation with marks (`cyberkv mark`) only the tokens before the first private one are published, as a
    conversation of their own, and what is withheld is listed with the reason. Public tokens after a private one depend
    on it; `--reprefill` computes all public tokens again without the private ones and publishes that.

    A home that has a key signs what it makes public, and prints the address of the receipt besides that of the root:
    whoever fetches by that knows who signed, and may go on from it where the signer is trusted (`cyberkv trust`). The
    signature is the same person's on everything they sign: `--no-sign` leaves it out.

    With `--to` or `--link` it is sealed first: what is published is ciphertext, and the keys named, or the link, open
    it. Who publishes can always open it. The same again, for the same readers, has the same address, and nothing of it
    is written twice. Revoking and adding readers: `cyberkv grant`.
    """
    if car is not None and kubo is not None:
        raise click.UsageError("--car and --kubo are two destinations: give one at a time")
    for_some = bool(to or link)
    if public and for_some:
        raise click.UsageError("--public lets everybody read; --to and --link only some: give one of them")
    if not link and (password or password_file):
        raise click.UsageError("a password belongs to a link: add --link")
    if ring and not for_some:
        raise click.UsageError("--ring belongs to --to and --link")
    if not for_some and (pq or cipher):
        raise click.UsageError(f"{'--pq' if pq else '--cipher'} belongs to --to and --link")
    if for_some and sign is not None:
        raise click.UsageError("--sign belongs to --public: a grant is signed in any case")
    if key_name and sign is False:
        raise click.UsageError("--key names who signs, and --no-sign says that nobody does")
    if for_some:
        audience = Audience(to, link, password, password_file, pq, cipher, key_name, ring)
        publish_for(session, ref, audience, car, kubo, dry_run=dry_run)
        return
    if reprefill and (dry_run or not public):
        raise click.UsageError("--reprefill records and publishes: it needs --public, and no --dry-run")
    publish_for_all(session, ref, Wish(public, key_name, sign, reprefill, dry_run, yes), car, kubo)
