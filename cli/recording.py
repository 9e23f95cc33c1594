"""A live conversation under a name: what `prefill`, `run` and `chat` have in common."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..cybergraph.chain import load_root
from ..cybergraph.cid import Cid
from ..cybergraph.index.marks import encode_name
from ..cybergraph.refs import resolve_root
from .context import Session
from .interrupt import Stop
from .marking import carry_marks
from .models import choose_model, need_codec
from .names import name_of_head, say_moves, unique
from .progress import bar, busy
from .rates import keep_rate, read_rate
from .trust import require_usable

if TYPE_CHECKING:
    from ..runtime.live import Live
    from ..runtime.models.tokenizer import TextCodec
    from ..runtime.sampling import Sampling


@dataclass(slots=True)
class Recording:
    """A live conversation, the name it is recorded under, and what it has cost in time."""

    session: Session
    live: "Live"
    codec: "TextCodec"
    name: str
    parent: Cid | None
    fork_at: int | None
    root: Cid | None
    """The newest root that is recorded."""
    recorded_tokens: int
    """Length of that root."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tokens_generated: int = 0

    @property
    def has_room(self) -> bool:
        """Whether the model has positions for more tokens."""
        return len(self.live.tokens) < self.live.engine.config.max_positions

    def append(self, text: str, stop: Stop, *, special: bool = False) -> None:
        """Take a text as given. Asked to stop, raises `KeyboardInterrupt` after the chunk at hand."""
        self.append_tokens(self.codec.encode(text, special=special), stop)

    def append_tokens(self, tokens: Sequence[int], stop: Stop) -> None:
        """Take tokens as given, as `append` does text."""
        started_s = self.session.clock_s()
        with bar(self.session, "prefill") as draw:

            def progress(done: int, total: int) -> None:
                draw(done, total)
                stop.check()

            self.live.append(tokens, progress)
        self.prefill_s += self.session.clock_s() - started_s

    def generate(self, max_tokens: int, sampling: "Sampling", stop: Stop) -> Iterator[str]:
        """Yield the text of an answer as it comes. Asked to stop, raises `KeyboardInterrupt` between tokens."""
        stream = self.codec.stream()
        started_s = self.session.clock_s()
        try:
            for token in self.live.generate(max_tokens, sampling, self.codec.eos_ids):
                self.tokens_generated += 1
                yield stream.feed(token)
                stop.check()
        finally:
            self.decode_s += self.session.clock_s() - started_s
        yield stream.finish()

    def save(self) -> Cid:
        """Record the state as the newest root of the name, durably."""
        from ..runtime.checkpoint import checkpoint

        created = self.session.now()
        self.root = checkpoint(self.live, title=self.name, created=created, parent=self.parent, fork_at=self.fork_at)
        self.recorded_tokens = len(self.live.tokens)
        self._keep_rate()
        self.session.index.set_head(self.name, self.root, created)
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
        child = Recording(self.session, live, self.codec, name, self.root, at, self.root, at)
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
            "blocks_new": counts.blocks_new,
            "prefill_s": round(self.prefill_s, 6),
            "decode_tok_s": speed and round(speed, 3),
            "misses": [
                {"position_start": miss.position_start, "reason": miss.reason, "cid": miss.cid}
                for miss in counts.misses
            ],
        }


def start(session: Session, *, model: str | None, name: str | None, from_ref: str | None, base: str) -> Recording:
    """Load the model and open a conversation: a new one, or one that goes on from `from_ref`.

    Without a `name`, the head of a name goes on under it, and everything else gets a name made of `base`.
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
    from ..runtime.checkpoint import resume
    from ..runtime.engine import build_engine
    from ..runtime.live import Live
    from ..runtime.pace import Pace

    session.create_home()
    parent, fork_at = root_cid, root.length if root else None
    if from_ref is not None and root is not None and root_cid is not None:
        continued = name_of_head(session.index, from_ref, root_cid)
        name = name or continued
        if continued is not None and name == continued:
            parent, fork_at = root.parent, root.fork_at
    if name is not None:
        say_moves(session, name, root_cid)
    with busy(session, f"loading {record.name}"):
        loaded = session.registry.load(record)
        codec = need_codec(loaded.text, record.name)
        engine = build_engine(loaded, session.store, session.index)
        engine.pace = Pace(session.clock_s, read_rate(session.home, record.cid))
        started_s = session.clock_s()
        live = Live(engine) if root_cid is None else resume(engine, root_cid)
    return Recording(
        session,
        live,
        codec,
        name or unique(session.index, base),
        parent,
        fork_at,
        root_cid,
        len(live.tokens),
        prefill_s=session.clock_s() - started_s,
    )


def summary(figures: dict[str, Any]) -> Sequence[tuple[str, object]]:
    """Give the figures as a person reads them."""
    speed = figures["decode_tok_s"]
    reused, computed = figures["tokens_reused"], figures["tokens_computed"]
    return [
        ("name", figures["name"]),
        ("root", figures["root"]),
        ("tokens", f"{figures['tokens_total']:,}: {reused:,} reused, {computed:,} computed"),
        ("blocks", f"{figures['blocks_new']:,} new"),
        ("prefill", f"{figures['prefill_s']:.2f} s"),
        ("decode", None if speed is None else f"{speed:.1f} tokens/s"),
        *(("miss", f"at token {miss['position_start']:,}: {miss['reason']}") for miss in figures["misses"]),
    ]
