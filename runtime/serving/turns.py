"""One turn of a dialogue: from messages to a request of the scheduler, and from its tokens to text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ...cybergraph.chain import block_cids, load_root
from ...cybergraph.cid import Cid
from ...cybergraph.errors import OutOfRange
from ..batching.front import Front, Ticket
from ..batching.request import Finish, Outcome, Request
from ..checkpoint import resume
from ..engine import Engine
from ..live import Live
from ..models.tokenizer import TextCodec, TextStream
from ..sampling import Sampling
from .answers import Kept, Usage
from .book import Book, Place
from .protocol import ChatRequest
from .stops import StopWatch

FEW_CHARS: Final = 16
"""Of a token. A text with more for each position is looked at piece by piece, to refuse it before all is tokenised."""


class Opening(NamedTuple):
    """Where a turn goes on from, and what it is recorded as."""

    text: str
    """What is said, from which a new name is made."""
    place: Place | None
    """The name to go on under; where something else has become of it meanwhile, a new one is made."""
    root: Cid | None
    """The recorded conversation to load."""


class Recorder(Protocol):
    """Names and roots of recorded conversations. `find` and `name_of` may be called from any thread."""

    def find(self, ref: str) -> Cid:
        """Give the root that a reference means. Raises `NameNotFound`, `BadReference`, `Untrusted`."""

    def name_of(self, ref: str, root: Cid) -> str | None:
        """Give the name that goes on from `root`, which was found as `ref`, if there is one."""

    def save(self, live: Live, opening: Opening) -> Place:
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
        text, opening = self._opening(asked)
        speaker = _Speaker(self._codec.stream(), StopWatch(asked.stop), deliver)
        root = opening.root

        def open_live(engine: Engine) -> Live:
            return Live(engine) if root is None else resume(engine, root)

        def blocks(engine: Engine) -> Sequence[Cid]:
            return [] if root is None else list(block_cids(engine.store, load_root(engine.store, root)))

        def keep(live: Live) -> Place:
            return self._recorder.save(live, opening)

        def hear(event: int | Outcome) -> None:
            if isinstance(event, Outcome):
                self._end(event, speaker, asked)

        room = self._engine.config.max_positions
        tokens = encode_at_most(self._codec, text, room)
        request = Request(
            tokens=tuple(tokens),
            max_tokens=room if asked.max_tokens is None else asked.max_tokens,
            sampling=Sampling(asked.temperature, asked.seed),
            stop=self._codec.eos_ids,
            ends=speaker.feed,
            open=open_live,
            blocks=None if root is None else blocks,
            keep=keep,
        )
        return self._front.submit(request, hear)

    def _opening(self, asked: ChatRequest) -> tuple[str, Opening]:
        """Give the text to add, and to what."""
        said = asked.messages[-1]["content"]
        if asked.conversation is None:
            return self._codec.render(asked.messages), Opening(said, self._book.place_of(asked.messages), None)
        root = self._recorder.find(asked.conversation)
        name = self._recorder.name_of(asked.conversation, root)
        return self._codec.continue_turn(said), Opening(said, None if name is None else Place(name, root), root)

    def _end(self, outcome: Outcome, speaker: _Speaker, asked: ChatRequest) -> None:
        if outcome.error is not None:
            speaker.deliver(outcome.error)
            return
        speaker.finish()
        place = outcome.kept if isinstance(outcome.kept, Place) else None
        if place is not None and asked.conversation is None:
            self._book.remember(asked.messages, "".join(speaker.pieces), place)
        kept = None if place is None else Kept(place.root, place.name)
        prompt_tokens = outcome.length_tokens - len(outcome.tokens)
        usage = Usage(prompt_tokens, min(outcome.counts.tokens_reused, prompt_tokens), len(outcome.tokens))
        speaker.deliver(Ended("length" if outcome.finish is Finish.LENGTH else "stop", usage, kept))


def encode_at_most(codec: TextCodec, text: str, most: int) -> Sequence[int]:
    """Turn text into tokens. Raises `OutOfRange` for far more than `most` of them, before all of it is read.

    Tokens of a long text take a hundred times its memory. Where a beginning is cut moves some tokens, not half of them.
    """
    chars = FEW_CHARS * most
    while chars < len(text):
        if (count := len(codec.encode(text[:chars], special=False))) > 2 * most:
            raise OutOfRange(
                f"more than {count} tokens, the model has {most} positions", hint="shorten the text", tokens=count
            )
        chars *= 2
    return codec.encode(text, special=False)
