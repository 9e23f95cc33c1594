"""`publish --to` and `publish --link`: make a conversation readable for some."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..cybergraph.chain import load_root, tokens
from ..cybergraph.errors import BadReference, Refused
from ..cybergraph.refs import resolve
from .block_bars import block_bars
from .context import Session
from .identities import access_folder, lineage_name, own_identity, read_public
from .identities import password as password_of
from .kubo import kubo_rpc
from .marking import marked_spans
from .models import find_codec
from .output import answer, facts, remark, say
from .served import served_urls
from .text import count, preview, size
from .trust import require_usable

if TYPE_CHECKING:
    from ..cybergraph.access import Identity, PublicIdentity
    from ..cybergraph.access.grant import Kem
    from ..cybergraph.access.lineage import Lineage
    from ..cybergraph.cid import Cid
    from ..cybergraph.transfer.progress import Progress
    from ..cybergraph.transfer.sealed import SealedReport

SAME_READERS: Final = "readers"
"""Stands for whoever has access already."""
WHOEVER: Final = "Whoever has this link can read it, for good. It is shown once."
BOTH: Final = "Whoever has this link and its password, which `fetch` asks for, can read it, for good. It is shown once."
MARKED: Final = "Part of it is marked private. Marks are about what everybody may read: these readers get all of it."
REVOCABLE: Final = "A reader can be kept out of later versions (`cyberkv grant revoke`), not of what was fetched."


@dataclass(frozen=True)
class Audience:
    """Who is to read."""

    keys: tuple[str, ...]
    """Public keys, files with them, or `readers`."""
    link: bool
    password: bool
    """Whether the link is to have a password."""
    password_file: Path | None
    pq: bool
    key_name: str | None
    """Own key that signs."""
    ring: bool
    """Whether readers are published as a ring."""


def publish_for(
    session: Session, ref: str, audience: Audience, car: Path | None, kubo: str | None, *, dry_run: bool
) -> None:
    """Seal the conversation for an audience, publish that, and answer."""
    from ..cybergraph.transfer.sealed import keeps_ring, publish_sealed

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
    folder = access_folder(session)
    with block_bars(session) as progress:
        with folder.giving():
            state = _state(session, ref, audience, issuer.public())
            ring = audience.ring or keeps_ring(session.store, state)
            if ring:
                _check_ring(state, issuer)
            folder.keep(state)  # the key first: what is sealed under it would be lost without
            state, report = publish_sealed(session.store, session.index, cid, state, issuer, progress, car, ring=ring)
            folder.keep(state)
        pinned = {} if kubo is None else _pin(session, report.root, kubo, progress)
    urls = (
        [f"ipfs://{report.root}"]
        if kubo
        else [car.resolve().as_uri()]
        if car
        else [f"{url}/ipfs/{report.root}" for url in served_urls(session.home)]
    )
    link = _link(state, report, password) if audience.link else None
    _answer(session, state, report, urls, link, pinned, has_password=password is not None)


def _pin(session: Session, root: "Cid", kubo: str, progress: "Progress") -> dict[str, Any]:
    """Upload to a node; give what the answer says about it."""
    from ..cybergraph.peers.kubo import WRITING
    from ..cybergraph.transfer.kubo import publish_kubo_sealed

    with closing(kubo_rpc(kubo, WRITING)) as rpc:
        report = publish_kubo_sealed(session.store, root, rpc, f"cyberkv/{root}", progress)
    return {"node": str(rpc.address), "pinned_as": f"cyberkv/{root}", **asdict(report)}


def _state(session: Session, ref: str, audience: Audience, issuer: "PublicIdentity") -> "Lineage":
    """Give the lineage to publish under, with the readers that were named. Raises `BadReference`, `BadKey`."""
    from ..cybergraph.access.aead import AES_256_GCM
    from ..cybergraph.access.lineage import Lineage

    name = lineage_name(session, ref)
    state = access_folder(session).lineage(name)
    if state is None:
        if audience.keys == (SAME_READERS,):
            raise BadReference(f"{ref} has no readers yet", hint="name them: --to KEY")
        kem: Kem = "mlkem768-x25519" if audience.pq else "x25519"
        state = Lineage.begin(name, issuer.signing, session.now(), alg=AES_256_GCM, kem=kem)
    elif audience.pq and state.kem == "x25519":
        raise BadReference(
            f"access to {name} began without --pq", hint="`cyberkv grant rotate` does not change that; use another name"
        )
    state.check_issuer(issuer)
    for text in audience.keys:
        if text != SAME_READERS:
            public = read_public(text)
            state = state.with_reader(public.fingerprint, public)
    return state


def _check_ring(state: "Lineage", issuer: "Identity") -> None:
    """Refuse a ring that hides nobody. Raises `Refused`."""
    from ..cybergraph.access.proof import MIN_RING_KEYS

    keys = {each.ring for each in (issuer.public(), *(reader.identity() for reader in state.readers))}
    if len(keys) < MIN_RING_KEYS:
        raise Refused(
            f"a ring of {count(len(keys), 'key')}, yours among them, would all but name the reader who proves access",
            hint=f"{MIN_RING_KEYS} make one; without --ring, a proof by the shared key hides which reader it is, too",
            keys=len(keys),
        )  # fmt: skip


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
        "root": report.root, "visibility": "sealed", "published": True, "blocks": len(report.cids),
        "bytes": report.bytes, "withheld": [], "urls": list(urls), "epoch": report.epoch, "readers": readers,
        "grant": report.grant, "ring": report.ring, "link": link, "plan": None,
    } | ({"kubo": pinned} if pinned else {})  # fmt: skip
    names = ", ".join(each["label"] for each in readers) or "nobody but you"
    rows: list[tuple[str, object]] = [
        ("sealed", report.root), ("readers", names), ("epoch", report.epoch),
        ("ring", report.ring),
        ("objects", f"{len(report.cids):,}, {size(report.bytes)} of ciphertext"), *(("at", url) for url in urls),
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
