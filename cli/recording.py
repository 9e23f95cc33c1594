"""A live conversation under a name: what `prefill`, `run` and `chat` have in common."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..cybergraph.chain import load_root
from ..cybergraph.cid import Cid
from ..cybergraph.errors import TierFull, UnsafeNumerics
from ..cybergraph.index.marks import encode_name
from ..cybergraph.refs import resolve_root
from ..cybergraph.verdict import Verdict
from .context import Session
from .device import PROCESSOR, Device, free_device, open_processor, say_less, say_why
from .interrupt import Stop, holdable
from .marking import carry_marks
from .models import choose_model, need_codec
from .names import keep_as, name_of_head, say_moves, say_own, unique
from .output import remark
from .progress import bar, busy
from .rates import keep_rate, read_rate
from .trust import require_usable

if TYPE_CHECKING:
    from ..runtime.cuda.processor import DeviceProcessor
    from ..runtime.engine import Engine
    from ..runtime.live import Live
    from ..runtime.models.record import ModelRecord
    from ..runtime.models.tokenizer import TextCodec
    from ..runtime.sampling import Sampling
    from ..runtime.selected import Selected
    from ..runtime.steps.drafting import Drafter

_DONE: Final = {
    Verdict.HIT: "in memory", Verdict.FAULT: "loaded", Verdict.RECOMPUTE: "computed", Verdict.REFUSE: "refused",
    Verdict.ABSTAIN: "kept back", Verdict.RECONCILED: "approximate",
}  # fmt: skip
"""How a person reads what was done with blocks; programs get the codes."""


@dataclass(slots=True)
class Recording:
    """A live conversation, the name it is recorded under, and what it has cost in time."""

    session: Session
    live: "Live | Selected"
    codec: "TextCodec"
    name: str
    parent: Cid | None
    fork_at: int | None
    root: Cid | None
    """The newest root that is recorded."""
    recorded_tokens: int
    """Length of that root."""
    head: Cid | None = None
    """Where the name ended when it was last looked at; None for a new name. Only from there it is moved."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tokens_generated: int = 0
    drafter: "Drafter | None" = None
    """Guesses tokens of answers, which are then checked several at a time."""
    first_append: Callable[..., None] | None = None
    """Takes the first tokens in place of `live.append`: of a conversation on its way, or under a budget."""

    @property
    def has_room(self) -> bool:
        """Whether the model has positions for more tokens; over selected blocks, it always has."""
        return self.is_selected or len(self.live.tokens) < self.live.engine.config.max_positions

    @property
    def is_selected(self) -> bool:
        """Whether blocks are selected, for a conversation beyond the model's positions."""
        from ..runtime.selected import Selected

        return isinstance(self.live, Selected)

    def append(self, text: str, stop: Stop, *, special: bool = False) -> None:
        """Take a text as given. Asked to stop, raises `KeyboardInterrupt` after the chunk at hand."""
        self.append_tokens(self.codec.encode(text, special=special), stop)

    def append_tokens(self, tokens: Sequence[int], stop: Stop) -> None:
        """Take tokens as given, as `append` does text."""
        started_s = self.session.clock_s()
        try:
            with bar(self.session, "prefill") as draw:

                def progress(done: int, total: int) -> None:
                    draw(done, total)
                    stop.check()

                append, self.first_append = self.first_append or self.live.append, None
                append(tokens, progress)
            stop.check()  # the last chunk was stored since it was asked
        finally:
            self.prefill_s += self.session.clock_s() - started_s

    def generate(self, max_tokens: int, sampling: "Sampling", stop: Stop) -> Iterator[str]:
        """Yield the text of an answer as it comes. Asked to stop, raises `KeyboardInterrupt` between tokens."""
        stream = self.codec.stream()
        started_s = self.session.clock_s()
        try:
            for token in self._chosen(max_tokens, sampling):
                self.tokens_generated += 1
                yield stream.feed(token)
                stop.check()
        finally:
            self.decode_s += self.session.clock_s() - started_s
        yield stream.finish()

    def _chosen(self, max_tokens: int, sampling: "Sampling") -> Iterator[int]:
        from ..runtime.selected import Selected

        live, ends = self.live, self.codec.eos_ids
        if isinstance(live, Selected):
            return live.generate(max_tokens, sampling, ends)
        return live.generate(max_tokens, sampling, ends, self.drafter)

    def save(self) -> Cid:
        """Record the state as the newest root of the name, durably.

        Where another writer has moved the name meanwhile, this goes on under a name of its own, which is said.
        """
        from ..runtime.checkpoint import checkpoint
        from ..runtime.selected import Selected

        created, name = self.session.now(), self.name
        write = self.live.checkpoint if isinstance(self.live, Selected) else partial(checkpoint, self.live)

        def write_for(title: str) -> Cid:
            if title != name and self.root is not None:
                self.parent, self.fork_at = self.root, min(self.recorded_tokens, len(self.live.tokens))
            return write(title=title, created=created, parent=self.parent, fork_at=self.fork_at)

        with holdable() as stop:
            stop.hold()  # else a name could have moved without this knowing
            self.name, self.root = keep_as(self.session.index, name, write_for, created, expected=self.head)
            self.head, self.recorded_tokens = self.root, len(self.live.tokens)
        self._keep_rate()
        say_own(self.session, name, self.name)
        return self.root

    def _keep_rate(self) -> None:
        engine, home = self.live.engine, self.session.home
        rate = engine.pace.prefill_tokens_s
        if rate is not None and rate != read_rate(home, engine.model_cid):
            keep_rate(home, engine.model_cid, rate)

    def save_progress(self) -> None:
        """Record what was added. Raises `KeyboardInterrupt` where nothing was, after an early Ctrl-C."""
        if len(self.live.tokens) <= self.recorded_tokens:
            raise KeyboardInterrupt
        self.save()

    def fork(self, at: int) -> "Recording":
        """Record the first `at` tokens under another name, to go on from there."""
        name = unique(self.session.index, f"{self.name}-fork")
        live = self.live.fork(at)
        child = Recording(self.session, live, self.codec, name, self.root, at, self.root, at, drafter=self.drafter)
        carry_marks(self.session, lambda: self.live.tokens, at)
        child.save()
        return child

    def figures(self) -> dict[str, Any]:
        """Say what the conversation is and what it has cost, ready for JSON."""
        counts = self.live.counts
        speed = self.tokens_generated / self.decode_s if self.tokens_generated and self.decode_s else None
        return {
            "root": self.root,
            "name": self.name,
            "model": self.live.engine.model_cid,
            "tokens_total": len(self.live.tokens),
            "tokens_reused": counts.tokens_reused,
            "tokens_computed": counts.tokens_computed,
            "tokens_generated": self.tokens_generated,
            "drafted": counts.tokens_drafted,
            "accepted": counts.tokens_accepted,
            "blocks_new": counts.blocks_new,
            "verdicts": dict(Counter(str(each.verdict) for each in counts.executed)),
            "approx": self.live.approx,
            "prefill_s": round(self.prefill_s, 6),
            "decode_tok_s": speed and round(speed, 3),
            "misses": [
                {"position_start": miss.position_start, "reason": miss.reason, "cid": miss.cid}
                for miss in counts.misses
            ],
        }


class Select(NamedTuple):
    """How a conversation goes on beyond the positions of its model."""

    policy: str
    coming_tokens: Callable[["TextCodec"], int]
    """How many tokens the next turn may need."""


def start(
    session: Session, *, model: str | None, name: str | None, from_ref: str | None, base: str,
    select: Select | None = None, device: Device = PROCESSOR, comes_later: bool = False,
) -> Recording:  # fmt: skip
    """Load the model and open a conversation: a new one, or one that goes on from `from_ref`.

    Without a `name`, the head of a name goes on under it, and everything else gets a name made of `base`. With
    `select`, what would grow beyond the model's positions is computed over selected blocks, and marked so. With
    `comes_later`, on a device, it is loaded with the first tokens that are appended, while they are computed.
    """
    if name is not None:
        encode_name(name)  # a bad name must not cost a prefill first
    root_cid = root = None
    if from_ref is not None:
        session.open_to_write()
        root_cid = resolve_root(from_ref, session.index, session.store)
        root = load_root(session.store, root_cid)
        require_usable(session, root_cid)
    record = choose_model(session, model, root)
    # These load torch, which takes seconds: not before it is known that there is a model to run.
    from ..runtime.checkpoint import append_recorded, resume
    from ..runtime.live import Live
    from ..runtime.selected import Selected
    from ..runtime.selection import POLICIES

    session.create_home()
    parent, fork_at = root_cid, root.length if root else None
    head = None
    if from_ref is not None and root is not None and root_cid is not None:
        continued = name_of_head(session.index, from_ref, root_cid)
        name = name or continued
        if continued is not None and name == continued:
            parent, fork_at, head = root.parent, root.fork_at, root_cid
    if name is not None and head is None:
        head = say_moves(session, name, root_cid)
    engine, codec = load_engine(session, record, device)
    with busy(session, "loading the conversation"):
        started_s = session.clock_s()
        length = root.length if root else 0
        live: Live | Selected
        first_append = None
        if select and length + select.coming_tokens(codec) > engine.config.max_positions:
            policy = POLICIES[select.policy]
            live = Selected(engine, policy) if root_cid is None else Selected.resume(engine, root_cid, policy)
        elif comes_later and root_cid is not None and engine.processor.kind:
            live = Live(engine)
            first_append = partial(append_recorded, live, root_cid)
        else:
            live = Live(engine) if root_cid is None else resume(engine, root_cid)
    return Recording(
        session,
        live,
        codec,
        name or unique(session.index, base),
        parent,
        fork_at,
        root_cid,
        length if first_append else len(live.tokens),
        head,
        prefill_s=session.clock_s() - started_s,
        first_append=first_append,
    )


def load_engine(session: Session, record: "ModelRecord", device: Device = PROCESSOR) -> "tuple[Engine, TextCodec]":
    """Load a registered model to record into the home. Raises `UnsupportedModel` for one that takes no text.

    And as `open_processor`. By `auto`, a device that has no room for the model, or may seal nothing, is given back.
    """
    with busy(session, f"loading {record.name}"):
        processor, opened = open_processor(session, record, device), None
        if processor is not None and device.name == "auto":
            try:
                opened = _open_engine(session, record, processor)
                opened[0].domain.require_sound()
            except (TierFull, UnsafeNumerics) as error:
                say_why(session, error)
                processor = opened = None
            if opened is None:
                free_device()
        engine, codec = opened or _open_engine(session, record, processor)
    say_less(session, processor)
    return engine, codec


def _open_engine(
    session: Session, record: "ModelRecord", processor: "DeviceProcessor | None"
) -> "tuple[Engine, TextCodec]":
    from ..runtime.engine import build_engine
    from ..runtime.pace import Pace

    loaded = session.registry.load(record, None if processor is None else processor.arithmetic)
    codec = need_codec(loaded.text, record.name)
    engine = build_engine(loaded, session.store, session.index, processor=processor)
    engine.pace = Pace(session.clock_s, read_rate(session.home, record.cid))
    return engine, codec


def say_interrupted(recording: Recording, part: str, *, again: bool) -> None:
    """Say how much is recorded after a Ctrl-C, and whether the same command `again` goes on from there."""
    more = "; the same command again reuses them" if again else ""
    remark(recording.session, f"interrupted: {part} are recorded as {recording.name}{more}")


def summary(figures: dict[str, Any]) -> Sequence[tuple[str, object]]:
    """Give the figures as a person reads them."""
    speed = figures["decode_tok_s"]
    reused, computed = figures["tokens_reused"], figures["tokens_computed"]
    lookups = [f"{blocks:,} {_DONE[Verdict(code)]}" for code, blocks in figures["verdicts"].items()]
    return [
        ("name", figures["name"]),
        ("root", figures["root"]),
        ("tokens", f"{figures['tokens_total']:,}: {reused:,} reused, {computed:,} computed"),
        ("blocks", f"{figures['blocks_new']:,} new"),
        ("lookups", ", ".join(lookups) or None),
        ("approx", figures["approx"]),
        ("prefill", f"{figures['prefill_s']:.2f} s"),
        ("decode", None if speed is None else f"{speed:.1f} tokens/s"),
        ("drafted", f"{figures['drafted']:,}, {figures['accepted']:,} right" if figures["drafted"] else None),
        *(("miss", f"at token {miss['position_start']:,}: {miss['reason']}") for miss in figures["misses"]),
    ]
