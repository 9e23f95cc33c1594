"""What is asked of the scheduler, and what comes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ...cybergraph.cid import Cid
from ..engine import Engine
from ..live import Live
from ..reuse import Counts
from ..sampling import Sampling
from ..steps.drafting import Drafter


class Finish(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """A stop token was chosen; it is neither delivered nor recorded."""
    LENGTH = "length"
    """`max_tokens` were chosen, or the positions of the model are used up."""
    CANCELLED = "cancelled"
    FAILED = "failed"
    """`Outcome.error` says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to go on from, and how to go on."""

    tokens: tuple[int, ...]
    """The prompt; after `open`, what is added to that conversation. Empty only where `open` gives a conversation."""
    max_tokens: int
    """Tokens to choose at most; 0 computes and seals the prompt alone."""
    sampling: Sampling = field(default=Sampling())
    stop: frozenset[int] = frozenset()
    ends: Callable[[int], bool] | None = None
    """Called in the stepping thread with each chosen token, once and in order: true where the answer ends with it, such
    as at a text that was asked for."""
    drafter: Drafter | None = None
    """Proposes tokens that are then checked several at a time. The answer does not depend on it."""
    open: Callable[[Engine], Live] = Live
    """Gives the conversation that the tokens are added to, for example `lambda engine: resume(engine, root)`. Called in
    the stepping thread when the request is admitted, and again where the pool had no room for it then."""
    blocks: Callable[[Engine], Sequence[Cid]] | None = None
    """Names the blocks that `open` takes, so that they can be brought nearer while the request waits. Without it, those
    that the index knows of `tokens` are. Called in the stepping thread, and only where there is host memory for it."""
    keep: Callable[[Live], object] | None = None
    """Called in the stepping thread with the finished conversation before its rows are given back, for example to
    `checkpoint` it. What it returns is `Outcome.kept`. Not called for a request that was cancelled or failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    finish: Finish
    tokens: tuple[int, ...]
    """What was chosen, without the stop token. Where the request came to its end, all of it is recorded."""
    length_tokens: int
    """Length of the conversation, prompt included."""
    counts: Counts
    """What it cost: tokens reused and computed, blocks sealed here."""
    kept: object = None
    """What `Request.keep` returned."""
    error: Exception | None = None
    """Why it failed."""
    preempted: int = 0
    """How often it had to wait outside the pool."""


Listener = Callable[[int | Outcome], None]
"""Called in the stepping thread with each token as it is chosen and, last, with the outcome. It must not block: a
server hands over with `loop.call_soon_threadsafe`. What it raises ends its own request, and no other."""
