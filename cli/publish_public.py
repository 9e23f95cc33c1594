"""`publish --public`: show what becomes readable for everybody, ask, and publish it."""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.policy import dependent
from ..cybergraph.refs import resolve_root
from .block_bars import block_bars
from .consent import check_free, confirm, count_kinds, shown, signed_by, text_of
from .context import Session
from .identities import FIRST_NAME, has_key, keep_first
from .kubo import kubo_rpc
from .marking import marked_spans
from .names import keep, name_of_head
from .output import answer, facts, remark, say
from .served import served_urls
from .text import plain, size
from .trust import carry_origin

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Receipt
    from ..cybergraph.peers.kubo import KuboRpc
    from ..cybergraph.transfer import PublishPlan
    from ..cybergraph.transfer.progress import Progress


@dataclass(frozen=True)
class Wish:
    """How somebody wants a conversation to be published for everybody."""

    public: bool
    """Whether they said so; without it, it is shown at most."""
    key_name: str | None
    sign: bool | None
    reprefill: bool
    dry_run: bool
    yes: bool


def publish_for_all(session: Session, ref: str, wish: Wish, car: Path | None, kubo: str | None) -> None:
    """Show what becomes public, ask, publish it, and answer; with `dry_run`, only show it."""
    from ..cybergraph.transfer import plan_publish, publish_car, publish_here
    from ..cybergraph.transfer.signed import with_receipt
    from .signing import choose_signer
    from .signing import sign as sign_root

    dry_run = wish.dry_run
    rpc = None
    if kubo is not None:
        from ..cybergraph.peers.kubo import WRITING

        rpc = kubo_rpc(kubo, WRITING)

    if not dry_run:
        session.open_to_write()
    cid = resolve_root(ref, session.index, session.store)
    asked = wish.public or dry_run
    spans = marked_spans(session, load_root(session.store, cid)) if asked else None
    if wish.reprefill and dependent(spans or ()):
        from .reprefill import reprefill as record_again

        ref = record_again(session, cid, spans or ())
        cid, spans = resolve_root(ref, session.index, session.store), None
    plan = plan_publish(session.store, session.index, cid, "public" if asked else None, spans)
    recorded, cid, root = cid, plan.root, plan.conversation
    signer = choose_signer(session, recorded, wish.key_name, sign=wish.sign, dry_run=dry_run)
    receipt = None if signer is None else sign_root(session, plan, signer, name_of_head(session.index, ref, recorded))
    leaving = plan if receipt is None else with_receipt(session.index, plan, receipt)
    if car is not None:
        check_free(car, leaving.root)
    text = text_of(session, recorded, root)
    pinned: dict[str, Any] = {}
    # Whoever is asked has to see it, and whoever wants quiet has to say so together with --yes.
    if not (session.as_json and dry_run) and not (session.quiet and wish.yes):
        for each in shown(leaving, cid, text, _signer(session, wish, receipt)):
            click.echo(plain(each), err=not dry_run)
    if not dry_run:
        confirm(yes=wish.yes)
        if signer is not None:
            keep_first(session, signer)
        with block_bars(session) as progress:
            if rpc is not None:
                pinned = _pin(session, ref, recorded, plan, receipt, rpc, progress)
            elif car is None:
                publish_here(session.store, session.index, leaving, progress)
                session.index.publish(cid, ())  # the root is one to begin with as well
            else:
                publish_car(session.store, leaving, car, progress)
        if receipt is not None:
            session.index.keep_receipt(receipt.root, receipt.producer, receipt.cid())
        _move_name(session, ref, recorded, plan)
    if rpc is not None:
        urls = [f"ipfs://{leaving.root}"]
    elif car is not None:
        urls = [car.resolve().as_uri()]
    else:
        urls = [f"{url}/ipfs/{leaving.root}" for url in served_urls(session.home)]
    data = {
        "root": cid,
        "visibility": plan.visibility,
        "published": not dry_run,
        "receipt": receipt and leaving.root,
        "signed_by": receipt and receipt.producer.hex(),
        "blocks": leaving.blocks,
        "bytes": leaving.bytes,
        "withheld": [each._asdict() for each in plan.withheld],
        "urls": urls,
        "text": text,
        "plan": _listed(leaving),
    } | ({"kubo": pinned} if pinned else {})
    answer(session, data, lambda: _show(cid, receipt, urls, pinned, dry_run=dry_run))
    if signer is not None and not dry_run:
        key = signer.public()
        remark(
            session,
            f"who goes on from it has to trust your key: send them `cyberkv trust add {key.signing.hex()}`, in a way "
            f"they know to be yours. `cyberkv key list` has the same key by its fingerprint, {key.fingerprint}",
        )


def _signer(session: Session, wish: Wish, receipt: "Receipt | None") -> str | None:
    """Say which key signs; one that is not kept yet would be another the next time, so it is not shown."""
    if wish.sign and not has_key(session):
        return f"a new key, {FIRST_NAME}: this home has none, and makes one when this is published"
    return None if receipt is None else signed_by(receipt.producer)


def _pin(
    session: Session,
    ref: str,
    recorded: "Cid",
    plan: "PublishPlan",
    receipt: "Receipt | None",
    rpc: "KuboRpc",
    progress: "Progress",
) -> dict[str, Any]:
    """Upload to a node; give what the answer says about it."""
    from ..cybergraph.transfer.kubo import publish_kubo
    from ..cybergraph.transfer.signed import pin_receipt

    name = None if plan.is_part else name_of_head(session.index, ref, recorded)  # it may have words of what stays here
    earlier = [head.root for head in session.index.log(name)] if name else []
    pin_name = f"cyberkv/{name or plan.root}"
    with closing(rpc):
        try:
            report = publish_kubo(session.store, session.index, plan, rpc, pin_name, earlier, progress)
            if receipt is not None:
                session.store.put_node(receipt)
                signed = pin_receipt(receipt, rpc, pin_name)
                report = replace(
                    report, bytes_sent=report.bytes_sent + signed.bytes_sent, announced=signed.announced,
                    note=signed.note,
                )  # fmt: skip
        except KeyboardInterrupt:
            raise click.Abort("what the node has pinned stays; the same command goes on from there") from None
    return {"node": str(rpc.address), "pinned_as": pin_name, **asdict(report)}


def _move_name(session: Session, ref: str, recorded: "Cid", plan: "PublishPlan") -> None:
    """Make the public root the head of the name: it is the one to share, and no other way leads to it."""
    name = name_of_head(session.index, ref, recorded)
    carry_origin(session, recorded, plan.root)
    if plan.root == recorded or name is None:
        return
    if plan.is_part:
        remark(session, f"{name} stays whole, and here: what is published is a conversation of its own")
        return
    if keep(session, name, plan.root, plan.conversation.created, expected=recorded) == name:
        remark(session, f"{name} now ends at {plan.root}, which does not name the private parent; `log` has both roots")


def _listed(plan: "PublishPlan") -> dict[str, Any]:
    return {
        "kinds": count_kinds(plan),
        "public_already": plan.public_already,
        "items": [{"cid": each.cid, "kind": each.kind, "bytes": each.size_bytes} for each in plan.items],
    }


def _show(cid: "Cid", receipt: "Receipt | None", urls: list[str], pinned: dict[str, Any], *, dry_run: bool) -> None:
    if dry_run:
        say("nothing was changed")
        return
    address = cid if receipt is None else receipt.cid()
    facts(
        [
            ("published", cid),
            ("receipt", receipt and address),
            ("signed by", receipt and receipt.producer.hex()),
            *(("at", url) for url in urls),
        ]
    )
    if pinned:
        parts = f"{pinned['parts_had']} of {pinned['parts_had'] + pinned['parts_sent']} parts were there"
        facts([("pinned on", pinned["node"]), ("as", pinned["pinned_as"])])
        facts([("sent", f"{size(pinned['bytes_sent'])}, {parts}")])
        facts([("announced", "yes" if pinned["announced"] else f"no: {pinned['note']}")])
    elif urls:
        source = f"{address} --from FILE" if urls[0].startswith("file:") else urls[0]
        say(f"elsewhere: cyberkv fetch {source}")
    else:
        say(f"`cyberkv serve` serves it; elsewhere: cyberkv fetch {address} --from URL")
