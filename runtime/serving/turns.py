"""One turn of a dialogue: from messages to a request of the scheduler, and from its tokens to text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...cybergraph.cid import Cid
from ..batching.front import Front, Ticket
from ..batching.request import Finish, Outcome, Request
from ..checkpoint import resume
from ..engine import Engine
from ..live import Live
from ..models.tokenizer import TextCodec, TextStream
from ..sampling import Sampling
from .answers import Kept, Usage
from .book import Book
from .protocol import ChatRequest
from .stops import StopWatch


class Recorder(Protocol):
    """Names and roots of recorded conversations. `find` and `name_for` may be called from any thread."""

    def find(self, ref: str) -> Cid:
        """Give the root that a reference means. Raises `NameNotFound`, `BadReference`, `Untrusted`."""

    def name_for(self, ref: str | None, text: str) -> str:
        """Give the name to record under: that of the conversation which goes on, else a new one made of a text."""

    def save(self, live: Live, name: str, parent: Cid | None) -> Cid:
        """Write a root and make it the head of a name. Called in the thread that makes every step."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a turn ended."""

    finish: str
    """`stop` or `length`."""
    usage: Usage
    kept: Kept | None
    """None where it could not be recorded."""


Deliver = Callable[[str | Ended | Exception], None]
"""Takes pieces of text, none empty, and last the end, or why there is no answer. Called in the stepping thread."""


@dataclass(slots=True)
class _Speaker:
    """Text of the tokens of one answer, as they come."""

    stream: TextStream
    watch: StopWatch
    deliver: Deliver
    pieces: list[str] = field(default_factory=list)

    def feed(self, token: int) -> bool:
        """Take a token; say whether a stop text ends the answer here."""
        self._pass_on(self.watch.feed(self.stream.feed(token)))
        return self.watch.found

    def finish(self) -> None:
        self._pass_on(self.watch.feed(self.stream.finish()))
        self._pass_on(self.watch.finish())

    def _pass_on(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)
            self.deliver(piece)


class Turns:
    """Turns of many dialogues with one model. Safe for use by several threads."""

    def __init__(self, front: Front, engine: Engine, codec: TextCodec, recorder: Recorder) -> None:
        self._front = front
        self._engine = engine
        self._codec = codec
        self._recorder = recorder
        self._book = Book()

    def begin(self, asked: ChatRequest, deliver: Deliver) -> Ticket:
        """Hand in one turn. Takes the time of rendering the template, some 50 ms.

        Raises at once what is wrong with it: `Refused` by the template, `OutOfRange`, `NameNotFound`, `TierFull`.
        """
        text, root, name = self._opening(asked)
        speaker = _Speaker(self._codec.stream(), StopWatch(asked.stop), deliver)
        parent = root

        def open_live(engine: Engine) -> Live:
            return Live(engine) if root is None else resume(engine, root)

        def keep(live: Live) -> Kept:
            return Kept(str(self._recorder.save(live, name, parent)), name)

        def hear(event: int | Outcome) -> None:
            if isinstance(event, Outcome):
                self._end(event, speaker, asked, name)

        tokens = self._codec.encode(text, special=False)
        room = self._engine.config.max_positions
        request = Request(
            tokens=tuple(tokens),
            max_tokens=room if asked.max_tokens is None else asked.max_tokens,
            sampling=Sampling(asked.temperature, asked.seed),
            stop=self._codec.eos_ids,
            ends=speaker.feed,
            open=open_live,
            keep=keep,
        )
        return self._front.submit(request, hear)

    def _opening(self, asked: ChatRequest) -> tuple[str, Cid | None, str]:
        """Give the text to add, the root to add it to, and the name to record under."""
        said = next((m["content"] for m in reversed(asked.messages) if m["role"] == "user"), "")
        if asked.conversation is not None:
            root = self._recorder.find(asked.conversation)
            return self._codec.continue_turn(said), root, self._recorder.name_for(asked.conversation, said)
        name = self._book.name_for(asked.messages) or self._recorder.name_for(None, asked.messages[-1]["content"])
        return self._codec.render(asked.messages), None, name

    def _end(self, outcome: Outcome, speaker: _Speaker, asked: ChatRequest, name: str) -> None:
        if outcome.error is not None:
            speaker.deliver(outcome.error)
            return
        speaker.finish()
        kept = outcome.kept if isinstance(outcome.kept, Kept) else None
        if kept is not None and asked.conversation is None:
            self._book.remember(asked.messages, "".join(speaker.pieces), name)
        prompt_tokens = outcome.length_tokens - len(outcome.tokens)
        usage = Usage(prompt_tokens, min(outcome.counts.tokens_reused, prompt_tokens), len(outcome.tokens))
        speaker.deliver(Ended("length" if outcome.finish is Finish.LENGTH else "stop", usage, kept))
