"""`run --from CID --source PLACE`: going on from a conversation that is elsewhere, while it comes."""

import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, Untrusted
from ..cybergraph.identity import require_same
from ..cybergraph.index.marks import encode_name
from .context import Session
from .device import PROCESSOR, Device
from .fetch_all import read_signed
from .models import choose_model, not_registered
from .names import is_whole, record_head, root_of, slug, unique
from .output import remark
from .places import Place, by_speed, named, note_speeds
from .recording import Recording, load_engine
from .trust import trust_folder
from .vouching import Vouching

if TYPE_CHECKING:
    from ..cybergraph.nodes import Conversation, Receipt
    from ..runtime.prefetch import Arrival


@dataclass
class Arriving:
    """A conversation on its way into a recording."""

    session: Session
    arrival: "Arrival"
    places: list[Place]
    vouching: Vouching
    receipt: "Receipt | None"
    name: str | None
    recording: Recording
    kept_blocks: int = 0
    """Blocks at the beginning that came and are used."""

    def append(self, tokens: Sequence[int], progress: Callable[[int, int], None]) -> None:
        """Take the conversation and `tokens` after it, and record what came whole as a fetch does."""
        from ..runtime.live import Live
        from ..runtime.prefetch import append_arriving

        session, arrival, recording, live = self.session, self.arrival, self.recording, self.recording.live
        if not isinstance(live, Live):
            raise TypeError("a selection does not arrive")
        length = arrival.root.length
        arrival.watch = lambda done, total: progress(length * done // max(1, total), length + len(tokens))
        try:
            self.kept_blocks = append_arriving(live, arrival, tokens, progress)
        finally:
            note_speeds(session, list(zip(self.places, arrival.reports(), strict=True)))
            if arrival.is_whole:
                if self.receipt is not None:
                    session.store.put_node(self.receipt)
                if self.vouching.came:
                    session.index.add_sources(arrival.root_cid, [place.source for place in self.places])
                recording.name = record_head(session, arrival.root_cid, self.name)
                recording.root = recording.head = arrival.root_cid
                recording.recorded_tokens = length
                recording.parent, recording.fork_at = arrival.root.parent, arrival.root.fork_at

    def settle(self) -> dict[str, Any]:
        """After the turn: note what the new root stands on, say what did not come, and give the figures."""
        from ..cybergraph.access.trust import Ground

        arrival, recording = self.arrival, self.recording
        if not arrival.is_whole:
            sources = (word for place in self.places for word in ("--from", place.source))
            again = shlex.join(["cyberkv", "fetch", str(arrival.root_cid), *sources])
            remark(self.session, f"what was checked is kept; `{again}` brings the rest")
            if self.vouching.came and self.kept_blocks and recording.root is not None:
                tokens = self.kept_blocks * arrival.root.block_size
                trust_folder(self.session).stand(Ground(recording.root, arrival.root_cid, tokens, rows=False))
        return {
            "root": arrival.root_cid,
            "whole": arrival.is_whole,
            "bytes_fetched": arrival.fetched_bytes,
            "peers": [place.peer.name for place in self.places],
            **self.vouching.facts(arrival.root_cid),
        }


def start_arriving(
    session: Session, stack: ExitStack, *, model: str | None, name: str | None, ref: str, sources: Sequence[str],
    trusted: tuple[str, ...], device: Device = PROCESSOR,
) -> Arriving:  # fmt: skip
    """Open a conversation that is elsewhere, or what a receipt signs, and load its model. No block has moved yet.

    Trust is asked for as by `fetch` and `run` together, before anything but root, page table and block nodes moves.
    Raises `BadReference` for what is sealed, `Untrusted`, and as `fetch` and `start`.
    """
    from ..cybergraph.access.receipt import check_receipt
    from ..cybergraph.access.standing import require_usable

    if name is not None:
        encode_name(name)
    if not is_whole(ref):
        raise BadReference(f"{ref} is no CID", hint="--source takes the whole CID of what it brings", ref=ref[:80])
    session.create_home()
    places = by_speed(session, named(sources, (), stack))
    peers = [place.peer for place in places]
    vouching = Vouching(session, trusted, has_link=False)
    vouching.trust_keys()
    root_cid, receipt = read_signed(session, Cid.parse(ref), peers)
    if receipt is not None:
        check_receipt(receipt)
        vouching.heard(receipt)

    def begin(cid: Cid, root: "Conversation") -> None:
        if receipt is not None:
            check_receipt(receipt, root)
        vouching.begin(cid, root)

    arrival = _arrival(session, root_cid, peers, None if receipt is None else receipt.producer)
    stack.callback(arrival.close)
    root = arrival.open(begin)
    try:
        require_usable(arrival.desk, session.index, trust_folder(session), root_cid)
    except Untrusted as error:  # nothing of it is recorded here, so what `fetch` would take is no help
        hint = "--trust KEY with this command trusts who signed; --trust unsigned accepts this one conversation"
        raise Untrusted(error.message, hint=hint, **error.data) from error
    record = _model(session, model, arrival)
    from ..runtime.live import Live

    engine, codec = load_engine(session, record, device)
    stands_for = name or unique(session.index, slug(root.title))
    live, head = Live(engine, approx=root.approx), root_of(session.index, stands_for)
    recording = Recording(session, live, codec, stands_for, None, None, None, 0, head)
    arriving = Arriving(session, arrival, places, vouching, receipt, name, recording)
    recording.first_append = arriving.append
    return arriving


def _arrival(session: Session, root: Cid, peers: "Sequence[Any]", signer: bytes | None) -> "Arrival":
    from ..runtime.prefetch import Arrival

    free_bytes = shutil.disk_usage(session.home).free
    return Arrival(
        session.store, session.index, root, peers, signer=signer, free_bytes=free_bytes, clock_s=session.clock_s
    )


def _model(session: Session, ref: str | None, arrival: "Arrival") -> Any:
    """Choose the registered model of the conversation. Raises `IdentityMismatch` for another, `NotFound`."""
    from ..cybergraph.nodes import Model

    wanted = Model.decode(arrival.desk.get(arrival.root.model))
    if ref is not None:
        record = choose_model(session, ref, None)
        require_same(record.identity, wanted, arrival.root_cid)
        return record
    records = session.registry.records()
    for record in records:
        if record.cid == arrival.root.model:
            return record
    raise not_registered(records, "the conversation was made with", wanted)


def check_options(ref: str | None, select: str | None, sources: Sequence[str], trusted: Sequence[str]) -> None:
    """Refuse options that make no sense beside each other."""
    if sources and (ref is None or select is not None):
        raise click.UsageError("--source says where the conversation of --from is; it cannot be given with --select")
    if trusted and not sources:
        raise click.UsageError("--trust is for what comes from a --source; `cyberkv trust add` is for what is here")
