"""`model preload`: bring the conversations that come with a model."""

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference
from .block_bars import block_bars
from .context import Session, pass_session
from .models import KnownModel, name_of_model, not_registered
from .names import is_whole
from .output import answer, facts
from .places import Place, by_speed, named
from .several import record_all, refusals, show_all
from .text import plain
from .trust import in_words, trust_folder
from .trust import named as named_signers
from .vouching import UNSIGNED, Vouching, is_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cybergraph.nodes import Conversation, ModelCard
    from ..cybergraph.peers import Peer
    from ..runtime.models.record import ModelRecord


@click.command()
@click.argument("source", metavar="FILE.model|CID")
@click.option(
    "--from", "sources", metavar="URL|FILE|kubo:[URL]", multiple=True,
    help="Gateway, CAR file or Kubo node to bring it from; may be given several times, and all are asked at once.",
)  # fmt: skip
@click.option(
    "--trust", "words", metavar="KEY|unsigned", multiple=True,
    help="Trust this signer from now on; `unsigned` takes this one card, whoever made it.",
)  # fmt: skip
@pass_session
def preload(session: Session, source: str, *, sources: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Bring the conversations that a model's card lists.

    FILE.model is what `cyberkv model card` wrote, and holds everything; of a card's CID, `--from` says where it is. The
    card has to be signed by somebody whom this home trusts (`cyberkv trust`, or --trust KEY) and to be for a model that
    is registered here. Each conversation is recorded under its title. Only objects that are missing here are brought,
    each checked against its CID and its place; a conversation of another model, or an approximate one, is refused.
    """
    from ..cybergraph.transfer.preload import preload as bring_all
    from ..cybergraph.transfer.preload import require_trusted

    session.open_to_write()
    vouching = Vouching(session, words, has_link=False)
    vouching.trust_keys()
    came: set[Cid] = set()

    def begin(root: Cid, conversation: "Conversation") -> None:
        if not is_ours(session, root):
            came.add(root)
        vouching.begin(root, conversation)

    with ExitStack() as stack:
        found = _find(session, source, sources, stack)
        trusted = None if UNSIGNED in words else trust_folder(session).trusted()
        signer = require_trusted(found.card, trusted)
        vouching.signers += [] if signer is None else [signer]
        record = _registered(session, found)
        started_s = session.clock_s()
        with block_bars(session) as progress:
            reports = bring_all(
                session.store, session.index, found.card, record.identity, found.peers, trusted=trusted,
                progress=progress, free_bytes=shutil.disk_usage(session.home).free, begin=begin,
            )  # fmt: skip
        seconds = session.clock_s() - started_s
    data: dict[str, Any] = {
        "card": found.cid, "model": record.cid, "name": record.name, "licence": found.card.licence,
        "signed_by": named_signers(session, vouching.signers), "seconds": round(seconds, 6),
        "conversations": record_all(session, reports, found.places, came), "refused": refusals(reports),
    }  # fmt: skip
    answer(session, data, lambda: _show(data))


@dataclass(frozen=True)
class _Found:
    """A card and where it was."""

    cid: Cid
    card: "ModelCard"
    places: "Sequence[Place]"

    @property
    def peers(self) -> "list[Peer]":
        return [place.peer for place in self.places]


def _find(session: Session, source: str, sources: tuple[str, ...], stack: ExitStack) -> _Found:
    """Read the card that is meant. Raises `BadReference`, and as `find_node`."""
    from ..cybergraph.nodes import ModelCard
    from ..cybergraph.transfer.single import find_node

    if is_whole(source):
        cid = Cid.parse(source)
        places = by_speed(session, named(sources, (), stack))
    else:
        cid = _root_of(Path(source))
        places = named((source, *sources), (), stack)
    node = None if cid.codec == "raw" else find_node(session.store, cid, [place.peer for place in places])
    if not isinstance(node, ModelCard):
        raise BadReference(
            f"{cid} is a {node.TYPE if node else 'leaf'}, not a model's card",
            hint="`cyberkv fetch` brings a conversation", cid=str(cid),
        )  # fmt: skip
    return _Found(cid, node, places)


def read_card(session: Session, path: Path) -> "tuple[dict[str, Any], KnownModel]":
    """Read what a FILE.model says of itself, its signature checked, and the model that it is for; nothing is stored.

    Raises `BadReference`, `BadSignature`, and as `CarFilePeer`.
    """
    from ..cybergraph.nodes import Model, ModelCard
    from ..cybergraph.peers import CarFilePeer
    from ..cybergraph.transfer.preload import require_trusted
    from ..cybergraph.transfer.single import bring_node

    with CarFilePeer(path) as file:
        cid = _root_of(path)
        card = bring_node(cid, [file], ModelCard)
        identity = bring_node(card.model, [file], Model)
    signer = require_trusted(card, None)
    said: dict[str, Any] = {
        "cid": cid, "name": card.name, "licence": plain(card.licence), "signed_by": signer and signer.hex(),
        "lists": list(card.preload),
    }  # fmt: skip
    return said, KnownModel(name_of_model(session, card.model), card.model, identity)


def _root_of(path: Path) -> Cid:
    """Give the one root of a CAR file. Raises `BadReference`, and as `CarFilePeer`."""
    from ..cybergraph.peers import CarFilePeer

    with CarFilePeer(path) as file:
        if len(file.roots) != 1:
            raise BadReference(f"{path} has {len(file.roots)} roots, a model's file one", hint="give the CID of a card")
        return file.roots[0]


def _registered(session: Session, found: _Found) -> "ModelRecord":
    """Find the model of a card among those registered here. Raises `IdentityMismatch`, `NotFound`."""
    from ..cybergraph.nodes import Model
    from ..cybergraph.transfer.single import bring_node

    records = session.registry.records()
    for record in records:
        if record.cid == found.card.model:
            return record
    raise not_registered(records, "the card is for", bring_node(found.card.model, found.peers, Model))


def _show(data: dict[str, Any]) -> None:
    signed = in_words(data["signed_by"])
    licence = plain(data["licence"]) or None
    facts([("card", data["card"]), ("model", data["name"]), ("licence", licence), ("signed by", signed)])
    show_all(data["conversations"], data["refused"])
