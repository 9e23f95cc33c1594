"""`publish`: make a conversation readable for everybody, or for some."""

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import load_root
from ..cybergraph.peers.kubo.address import DEFAULT_ADDRESS
from ..cybergraph.policy import dependent
from ..cybergraph.refs import resolve_root
from .block_bars import block_bars
from .consent import check_free, confirm, count_kinds, shown, text_of
from .context import Session, pass_session
from .identities import keep_first
from .kubo import kubo_rpc
from .marking import marked_spans
from .names import name_of_head
from .options import REF
from .output import answer, facts, remark, say
from .publish_sealed import Audience, publish_for
from .served import served_urls
from .text import plain, size
from .trust import carry_origin

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Receipt
    from ..cybergraph.peers.kubo import KuboRpc
    from ..cybergraph.transfer import PublishPlan
    from ..cybergraph.transfer.progress import Progress


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
    help="Write a CAR file instead of adding to what `serve` serves; with --to and --link, beside it.",
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
    node has them pinned. An existing FILE is replaced only if it holds this same root. An upload to a node that was
    stopped goes on where it stopped; the node's credential, if it wants one, is read from CYBERKV_KUBO_AUTH
    (`bearer:TOKEN` or `basic:USER:PASSWORD`) or from the file named by CYBERKV_KUBO_AUTH_FILE. `--dry-run` needs no
    other option: it shows what would become public, with --json the whole text and every CID, and changes nothing.

    Of a conversation with marks (`cyberkv mark`) only the tokens before the first private one are published, as a
    conversation of their own, and what is withheld is listed with the reason. Public tokens after a private one depend
    on it; `--reprefill` computes all public tokens again without the private ones and publishes that.

    A home that has a key signs what it makes public, and prints the address of the receipt besides that of the root:
    whoever fetches by that knows who signed, and may go on from it where the signer is trusted (`cyberkv trust`). The
    signature is the same person's on everything they sign: `--no-sign` leaves it out.

    With `--to` or `--link` it is sealed first: what is published is ciphertext, and the keys named, or the link, open
    it. Who publishes can always open it. Revoking and adding readers: `cyberkv grant`.
    """
    from ..cybergraph.transfer import plan_publish, publish_car, publish_here
    from ..cybergraph.transfer.signed import with_receipt
    from .signing import choose_signer
    from .signing import sign as sign_root

    if car is not None and kubo is not None:
        raise click.UsageError("--car and --kubo are two destinations: give one at a time")
    for_some = bool(to or link)
    if public and for_some:
        raise click.UsageError("--public lets everybody read; --to and --link only some: give one of them")
    if not link and (password or password_file):
        raise click.UsageError("a password belongs to a link: add --link")
    if ring and not for_some:
        raise click.UsageError("--ring belongs to --to and --link")
    if not for_some and pq:
        raise click.UsageError("--pq belongs to --to and --link")
    if for_some and sign is not None:
        raise click.UsageError("--sign belongs to --public: a grant is signed in any case")
    if key_name and sign is False:
        raise click.UsageError("--key names who signs, and --no-sign says that nobody does")
    if for_some:
        audience = Audience(to, link, password, password_file, pq, key_name, ring)
        publish_for(session, ref, audience, car, kubo, dry_run=dry_run)
        return
    if reprefill and (dry_run or not public):
        raise click.UsageError("--reprefill records and publishes: it needs --public, and no --dry-run")
    rpc = None
    if kubo is not None:
        from ..cybergraph.peers.kubo import WRITING

        rpc = kubo_rpc(kubo, WRITING)

    if not dry_run:
        session.open_to_write()
    cid = resolve_root(ref, session.index, session.store)
    asked = public or dry_run
    spans = marked_spans(session, load_root(session.store, cid)) if asked else None
    if reprefill and dependent(spans or ()):
        from .reprefill import reprefill as record_again

        ref = record_again(session, cid, spans or ())
        cid, spans = resolve_root(ref, session.index, session.store), None
    plan = plan_publish(session.store, session.index, cid, "public" if asked else None, spans)
    recorded, cid, root = cid, plan.root, plan.conversation
    signer = choose_signer(session, recorded, key_name, sign=sign, dry_run=dry_run)
    receipt = None if signer is None else sign_root(session, plan, signer, name_of_head(session.index, ref, recorded))
    leaving = plan if receipt is None else with_receipt(session.index, plan, receipt)
    if car is not None:
        check_free(car, leaving.root)
    text = text_of(session, recorded, root)
    pinned: dict[str, Any] = {}
    # Whoever is asked has to see it, and whoever wants quiet has to say so together with --yes.
    if not (session.as_json and dry_run) and not (session.quiet and yes):
        for each in shown(leaving, cid, text, None if receipt is None else receipt.producer):
            click.echo(plain(each), err=not dry_run)
    if not dry_run:
        confirm(yes=yes)
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
    session.index.set_head(name, plan.root, plan.conversation.created)
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
