"""`verify --level receipt`: who signed a conversation, and what exactly they claim."""

from typing import TYPE_CHECKING, Any, Final

from ..cybergraph.chain import load_root, read_receipt, receipts_among
from ..cybergraph.errors import Corrupt, CyberKVError, NotFound
from ..cybergraph.refs import resolve
from ..cybergraph.survey import NODE_PREFIX
from .context import Session
from .output import answer, facts, say
from .trust import named, trust_folder

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Receipt

LEVEL = "receipt"
MOST_EARLIER: Final = 1000
"""Receipts before one that are followed."""
MEANING = "signed execution receipt: it says who claims this, not that it is right"


def verify_receipt(session: Session, ref: str) -> int:
    """Check every receipt of a conversation, or the one that REF names, and answer. Gives the exit code.

    What a receipt names as the one before is followed through the whole store, published or not.

    Raises `NotFound` where nobody signed.
    """
    cid = resolve(ref, session.index, session.store)
    given = read_receipt(session.store, cid)
    root = cid if given is None else given.root
    receipts = [given] if given is not None else _receipts(session, root)
    if not receipts:
        load_root(session.store, root)  # a CID that names nothing here, or something else, says so
        raise NotFound(
            f"no receipt of {root} is here: nobody signed it, or it was fetched without",
            hint="fetch it by the CID of its receipt, which whoever published it was shown", cid=str(root),
        )  # fmt: skip
    checked = [_check(session, receipt) for receipt in receipts]
    failed = [{"cid": each["cid"], "reason": each["reason"]} for each in checked if each["reason"]]
    data = {"root": root, "level": LEVEL, "checked": len(checked), "receipts": checked, "failed": failed}
    answer(session, data, lambda: _show(root, checked))
    return Corrupt.exit_code if failed else 0


def _receipts(session: Session, root: "Cid") -> "list[Receipt]":
    """List the receipts of a conversation: those that came with it, those published here, else any in the store."""
    origin = trust_folder(session).origin(root)
    noted = dict.fromkeys((*(origin.receipts if origin else ()), *session.index.published()))
    for cids in (noted, session.store.cids(NODE_PREFIX)):
        found = [receipt for receipt in receipts_among(session.store, cids) if receipt.root == root]
        if found:
            return found
    return []


def _check(session: Session, receipt: "Receipt") -> dict[str, Any]:
    from ..cybergraph.access.receipt import check_receipt

    reason = None
    try:
        check_receipt(receipt, load_root(session.store, receipt.root))
    except CyberKVError as error:
        reason = error.message
    [signer] = named(session, [receipt.producer])
    return {
        "cid": receipt.cid(),
        "producer": signer["key"],
        "label": signer["label"],
        "trusted": signer["trusted"],
        "model": receipt.model,
        "code": receipt.code,
        "domain": receipt.domain,
        "prev": receipt.prev,
        "earlier": [{"cid": each.cid(), "root": each.root} for each in _earlier(session, receipt)],
        "reason": reason,
    }


def _earlier(session: Session, receipt: "Receipt") -> "list[Receipt]":
    """List the receipts before one, newest first, as far as they are here, sound, and of the same signer."""
    from ..cybergraph.access.receipt import check_receipt

    found: list[Receipt] = []
    at = receipt
    while at.prev is not None and len(found) < MOST_EARLIER:  # each names the one before by its hash: there is no cycle
        before = read_receipt(session.store, at.prev)
        if before is None or before.producer != receipt.producer:
            break
        try:
            check_receipt(before)
        except CyberKVError:
            break
        found.append(before)
        at = before
    return found


def _trace(each: dict[str, Any]) -> str | None:
    """Say how far the receipts before one were followed."""
    if each["prev"] is None:
        return None
    followed = len(each["earlier"])
    return f"{each['prev']}{f', {followed} followed from here' if followed else ', which is not here'}"


def _show(root: "Cid", checked: list[dict[str, Any]]) -> None:
    facts([("root", root), ("level", LEVEL)])
    for each in checked:
        who = f"{each['producer']}{', ' + each['label'] if each['label'] else ''}"
        facts(
            [
                ("receipt", each["cid"]),
                ("key", who),
                ("trusted", "yes" if each["trusted"] else "no"),
                ("claims", f"that {each['code']} gave this root"),
                ("model", each["model"]),
                ("domain", each["domain"] or "not one for all blocks, or not all computed by the signer"),
                ("prev", _trace(each)),
            ]
        )
        if each["reason"]:
            say(f"failed: {each['reason']}", fg="red", bold=True)
        else:
            say("the signature is good", fg="green", bold=True)
    say(MEANING)
