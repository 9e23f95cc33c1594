"""Who is to read what is published for some, and what that makes of the readers it had."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..cybergraph.errors import BadReference, Refused
from .context import Session
from .identities import access_folder, lineage_name, read_public
from .text import count

if TYPE_CHECKING:
    from ..cybergraph.access import Identity, PublicIdentity
    from ..cybergraph.access.grant import Kem
    from ..cybergraph.access.lineage import Lineage

SAME_READERS: Final = "readers"
"""Stands for whoever has access already."""


@dataclass(frozen=True)
class Audience:
    """Who is to read, and how it is kept from others."""

    keys: tuple[str, ...]
    """Public keys, files with them, or `readers`."""
    link: bool
    password: bool
    """Whether the link is to have a password."""
    password_file: Path | None
    pq: bool
    cipher: str | None
    """By name; None for the one that the conversation has, or the default."""
    key_name: str | None
    """Own key that signs."""
    ring: bool
    """Whether readers are published as a ring."""


def with_audience(session: Session, ref: str, audience: Audience, issuer: "PublicIdentity") -> "Lineage":
    """Give the lineage to publish under, with the readers that were named.

    Raises `BadReference`, `BadKey`, and `Refused` for an old copy of a lineage.
    """
    name, folder = lineage_name(session, ref), access_folder(session)
    state = folder.lineage(name)
    if state is None:
        if audience.keys == (SAME_READERS,):
            raise BadReference(f"{ref} has no readers yet", hint="name them: --to KEY")
        state = _begun(session, name, audience, issuer)
    else:
        _check_form(state, audience)
    folder.check_newest(state)
    state.check_issuer(issuer)
    for text in audience.keys:
        if text != SAME_READERS:
            public = read_public(text)
            state = state.with_reader(public.fingerprint, public)
    return state


def _begun(session: Session, name: str, audience: Audience, issuer: "PublicIdentity") -> "Lineage":
    from ..cybergraph.access.aead import AES_256_GCM, CIPHERS
    from ..cybergraph.access.lineage import Lineage

    kem: Kem = "mlkem768-x25519" if audience.pq else "x25519"
    alg = CIPHERS[audience.cipher] if audience.cipher else AES_256_GCM
    return Lineage.begin(name, issuer.signing, session.now(), alg=alg, kem=kem)


def _check_form(state: "Lineage", audience: Audience) -> None:
    """Refuse options that do not go with how a conversation began: they hold for all its epochs."""
    from ..cybergraph.access.aead import CIPHERS

    if audience.pq and state.kem == "x25519":
        raise BadReference(
            f"access to {state.name} began without --pq",
            hint="`cyberkv grant rotate` does not change that; use another name",
        )
    if audience.cipher is not None and CIPHERS[audience.cipher] != state.alg:
        names = {number: name for name, number in CIPHERS.items()}
        raise BadReference(
            f"{state.name} is sealed under {names.get(state.alg, state.alg)}, and its epochs keep that",
            hint="leave --cipher out; or use another name", name=state.name,
        )  # fmt: skip


def check_ring(state: "Lineage", issuer: "Identity") -> None:
    """Refuse a ring that hides nobody. Raises `Refused`."""
    from ..cybergraph.access.proof import MIN_RING_KEYS

    keys = {each.ring for each in (issuer.public(), *(reader.identity() for reader in state.readers))}
    if len(keys) < MIN_RING_KEYS:
        raise Refused(
            f"a ring of {count(len(keys), 'key')}, yours among them, would all but name the reader who proves access",
            hint=f"{MIN_RING_KEYS} make one; without --ring, a proof by the shared key hides which reader it is, too",
            keys=len(keys),
        )  # fmt: skip
