"""`model card`: a model by name, with conversations worth loading beside it, as one file to pass around."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.identity import require_same
from ..cybergraph.nodes import Model, ModelCard
from ..cybergraph.nodes.card import MAX_LICENCE_BYTES
from ..cybergraph.refs import resolve_root
from .block_bars import block_bars
from .consent import check_free, confirm, shown, signed_by, text_of
from .context import Session, pass_session
from .identities import own_identity
from .marking import marked_spans
from .models import KnownModel, find_model
from .options import REF, TEXT
from .output import answer, facts
from .text import plain, size
from .trust import require_usable

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.transfer import PublishPlan


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("refs", metavar="[REF]...", nargs=-1, type=REF)
@click.argument("file", metavar="FILE.model", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--licence", metavar="TEXT", type=TEXT, default="", help="Under what terms the model may be used.")
@click.option("--key", "key_name", metavar="NAME", help="Own key that signs; needed where there are several.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@pass_session
def card(
    session: Session,
    model: str,
    *,
    refs: tuple[str, ...],
    file: Path,
    licence: str,
    key_name: str | None,
    yes: bool,
) -> None:
    """Write a model's card with conversations worth loading beside it.

    FILE.model then holds the card, signed with a key of this home, the identity of MODEL (not its weights), and each
    conversation REF with all it needs: a system prompt, a document. `cyberkv model preload` loads it elsewhere. What is
    not public yet is shown, and asked for, as by `publish --public`; of a conversation with private marks only the part
    before the first of them goes in. An existing FILE is replaced only if it holds this same card.
    """
    from ..cybergraph.transfer.card import CardPlan, publish_card, sign_card

    if len(licence.encode()) > MAX_LICENCE_BYTES:
        raise click.UsageError(f"--licence takes at most {MAX_LICENCE_BYTES} bytes: name it, or where it is to be read")
    session.open_to_write()
    known = find_model(session, model)
    recorded = list(dict.fromkeys(resolve_root(ref, session.index, session.store) for ref in refs))
    plans = [_plan(session, cid, known) for cid in recorded]
    identity = own_identity(session, key_name)
    name = known.name or known.identity.architecture
    roots = tuple(dict.fromkeys(plan.root for plan in plans))
    signed = sign_card(ModelCard(known.cid, name, licence, roots, None), identity)
    plan = CardPlan(signed, known.identity, tuple(plans))
    check_free(file, plan.root)
    signer = identity.signing.public_key().public_bytes_raw()
    fresh = [pair for pair in zip(recorded, plans, strict=True) if not session.index.is_public(pair[1].root)]
    if fresh:
        if not (session.quiet and yes):
            _say(session, fresh, signer)
        confirm(yes=yes)
    with block_bars(session) as progress:
        publish_card(session.store, plan, file, progress)
    data: dict[str, Any] = {
        "card": plan.root, "model": known.cid, "name": name, "licence": licence, "signed_by": signer.hex(),
        "roots": list(roots), "blocks": len(plan.items), "bytes": plan.bytes, "urls": [file.resolve().as_uri()],
        "withheld": [each._asdict() for single in plans for each in single.withheld],
    }  # fmt: skip
    rows = [
        ("card", plan.root), ("model", f"{name} {known.cid}"), ("signed by", signer.hex()),
        *(("lists", root) for root in roots), ("objects", f"{len(plan.items):,}, {size(plan.bytes)}"), ("at", file),
    ]  # fmt: skip
    answer(session, data, lambda: facts(rows))


def _plan(session: Session, cid: "Cid", model: KnownModel) -> "PublishPlan":
    """Plan what a card takes of one conversation. Raises `IdentityMismatch`, `Refused`, and as `plan_publish`."""
    from ..cybergraph.transfer import plan_publish
    from ..cybergraph.transfer.card import check_exact

    root = load_root(session.store, cid)
    require_same(model.identity, Model.decode(session.store.get(root.model)), cid)
    check_exact(cid, root)
    require_usable(session, cid)  # readers take the word of who signs the card
    return plan_publish(session.store, session.index, cid, "public", marked_spans(session, root))


def _say(session: Session, fresh: "list[tuple[Cid, PublishPlan]]", signer: bytes) -> None:
    """Show what becomes readable for anyone who gets the file."""
    for recorded, plan in fresh:
        for line in shown(plan, plan.root, text_of(session, recorded, plan.conversation), signed_by(signer)):
            click.echo(plain(line), err=True)
