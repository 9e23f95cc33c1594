"""`publish --to` and `publish --link`: make a conversation readable for some."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..cybergraph.chain import load_root, tokens
from ..cybergraph.refs import resolve
from .audience import SAME_READERS, Audience, check_ring, with_audience
from .block_bars import block_bars
from .consent import check_free
from .context import Session
from .identities import access_folder, lineage_name, own_identity
from .identities import password as password_of
from .kubo import kubo_rpc
from .marking import marked_spans
from .models import find_codec
from .output import answer, facts, remark, say
from .served import served_urls
from .text import count, preview, size
from .trust import require_usable

if TYPE_CHECKING:
    from ..cybergraph.access.lineage import Lineage
    from ..cybergraph.cid import Cid
    from ..cybergraph.peers.kubo import KuboRpc
    from ..cybergraph.transfer.sealed import SealedReport

WHOEVER: Final = "Whoever has this link can read it, for good."
BOTH: Final = "Whoever has this link and its password, which `fetch` asks for, can read it, for good."
MARKED: Final = "Part of it is marked private. Marks are about what everybody may read: these readers get all of it."
REVOCABLE: Final = "A reader can be kept out of later versions (`cyberkv grant revoke`), not of what was fetched."
UNCHANGED: Final = "Nothing of it has changed: it stands there already, under this address."


def publish_for(
    session: Session, ref: str, audience: Audience, car: Path | None, kubo: str | None, *, dry_run: bool
) -> None:
    """Seal the conversation for an audience, publish that, and answer."""
    from ..cybergraph.peers.kubo import WRITING
    from ..cybergraph.transfer.granting import keeps_ring
    from ..cybergraph.transfer.sealed import publish_sealed

    session.open_to_write()
    cid = resolve(ref, session.index, session.store)
    root = load_root(session.store, cid)
    if any(span.visibility == "private" for span in marked_spans(session, root) or ()):
        remark(session, MARKED)
    if dry_run:
        codec = find_codec(session, root.model)
        text = None if codec is None else codec.decode(tokens(session.store, root))
        _answer_dry(session, ref, audience, text, root.length)
        return
    password = None
    if audience.password or audience.password_file:
        password = password_of(audience.password_file, twice=True)
    require_usable(session, cid)  # readers take the word of who signs the grant for what is in it
    issuer = own_identity(session, audience.key_name)
    rpc = None if kubo is None else kubo_rpc(kubo, WRITING)
    folder = access_folder(session)
    with folder.giving(), block_bars(session) as progress:
        state = with_audience(session, ref, audience, issuer.public())
        if car is not None:
            check_free(car, *state.roots)
        ring = audience.ring or keeps_ring(state)
        if ring:
            check_ring(state, issuer)
        folder.keep(state)  # the key first: what is sealed under it would be lost without
        state, report = publish_sealed(
            session.store, session.index, cid, state, issuer, progress, car, ring=ring, known=folder.grant(state),
            keep=folder.keep_published,
        )  # fmt: skip
        if rpc is not None:
            state = state.with_pin(str(rpc.address), f"cyberkv/{report.root}", report.root)
            folder.keep(state)  # before it is pinned: what is not known to be pinned would stay so for good
    if report.unchanged:
        remark(session, UNCHANGED)
    pinned = {} if rpc is None else _pin(session, report, rpc)
    urls = (
        [f"ipfs://{report.root}"]
        if kubo
        else [car.resolve().as_uri()]
        if car
        else [f"{url}/ipfs/{report.root}" for url in served_urls(session.home)]
    )
    link = _link(state, report, password) if audience.link else None
    _answer(session, state, report, urls, link, pinned, has_password=password is not None)


def _pin(session: Session, report: "SealedReport", rpc: "KuboRpc") -> dict[str, Any]:
    """Upload to a node; give what the answer says about it."""
    from ..cybergraph.transfer.kubo import publish_kubo_sealed

    name = f"cyberkv/{report.root}"
    with closing(rpc), block_bars(session) as progress:
        done = publish_kubo_sealed(session.store, report.root, rpc, name, progress)
    return {"node": str(rpc.address), "pinned_as": name, **asdict(done)}


def _link(state: "Lineage", report: "SealedReport", password: str | None) -> str:
    from ..cybergraph.access import ShareLink

    return str(ShareLink.make(report.root, state.content_key, state.commitment, password))


def _answer(
    session: Session,
    state: "Lineage",
    report: "SealedReport",
    urls: Sequence[str],
    link: str | None,
    pinned: dict[str, Any],
    *,
    has_password: bool,
) -> None:
    readers = [{"label": each.label, "fingerprint": each.identity().fingerprint} for each in state.readers]
    data: dict[str, Any] = {
        "root": report.root, "visibility": "sealed", "published": True, "unchanged": report.unchanged,
        "blocks": report.blocks, "bytes": report.bytes, "withheld": [], "urls": list(urls), "epoch": report.epoch,
        "readers": readers, "grant": report.grant, "ring": report.ring, "link": link, "plan": None,
    } | ({"kubo": pinned} if pinned else {})  # fmt: skip
    names = ", ".join(each["label"] for each in readers) or "nobody but you"
    rows: list[tuple[str, object]] = [
        ("sealed", report.root), ("readers", names), ("epoch", report.epoch),
        ("ring", report.ring),
        ("objects", f"{report.blocks:,}, {size(report.bytes)} of ciphertext"), *(("at", url) for url in urls),
        ("pinned on", pinned.get("node")), ("link", link),
    ]  # fmt: skip

    def show() -> None:
        facts(rows)
        first = "" if urls else "`cyberkv serve` serves it; "
        for each in _elsewhere(report.root, urls, to_readers=not link or bool(readers), link=link is not None):
            say(f"{first}elsewhere: cyberkv fetch {each}")

    answer(session, data, show)
    remark(session, (BOTH if has_password else WHOEVER) if link else REVOCABLE)


def _elsewhere(root: "Cid", urls: Sequence[str], *, to_readers: bool, link: bool) -> list[str]:
    """Say what to give to `fetch` on another machine. The link itself is shown once and not repeated."""
    url = urls[0] if urls else ""
    if url.startswith("file:"):
        source = "FILE"
    else:
        source = url.removesuffix(f"/ipfs/{root}") if url.startswith("http") else "URL"
    by_root = [url if url and source != "FILE" else f"{root} --from {source}"] if to_readers else []
    return by_root + ([f"LINK --from {source}"] if link else [])


def _answer_dry(session: Session, ref: str, audience: Audience, text: str | None, length: int) -> None:
    """Say who would read what. Nothing is sealed, so how much ciphertext it would be is not known."""
    state = access_folder(session).lineage(lineage_name(session, ref))
    had = [] if state is None else [each.label for each in state.readers]
    who = [*had, *(key for key in audience.keys if key != SAME_READERS)]
    who += ["whoever has the link"] if audience.link else []
    data = {"published": False, "visibility": "sealed", "readers": who, "text": text, "tokens": length}
    shown = "its model is not registered here" if text is None else preview(text, 200)
    rows = [("for", ", ".join(each[:40] for each in who)), ("text", f"{count(length, 'token')}: {shown}")]
    answer(session, data, lambda: facts([("conversation", ref), *rows, ("", "nothing was changed")]))
