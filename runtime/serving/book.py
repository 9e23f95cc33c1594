"""Which recorded conversation a list of messages goes on from.

A client of the protocol sends the whole dialogue with every turn and knows nothing of names. The book remembers each
dialogue by a digest of its messages, answer included, so that the next turn is recorded under the same name.

>>> book, root = Book(), Cid.of(b"", "raw", "blake3")
>>> first = ({"role": "user", "content": "Hi"},)
>>> book.remember(first, "Hello.", Place("greeting", root))
>>> book.place_of((*first, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And now?"})).name
'greeting'
>>> book.place_of(first) is None
True
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

from blake3 import blake3

from ...cybergraph.cid import Cid
from .protocol import Message

MOST_DIALOGUES: Final = 4096
"""Of more, those that went on longest ago are forgotten; their next turn begins a new name."""


class Place(NamedTuple):
    """Where a dialogue is recorded so far."""

    name: str
    root: Cid
    """With another head, the name has become that of something else: of a dialogue that began alike, for example."""


class Book:
    """Places by dialogue. Safe for use by several threads."""

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        self._lock = Lock()

    def place_of(self, messages: Sequence[Message]) -> Place | None:
        """Give the place of the dialogue that these messages go on from, if it took place here."""
        ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not ends:
            return None
        with self._lock:
            return self._places.get(_digest(messages[: ends[-1] + 1]))

    def remember(self, messages: Sequence[Message], answer: str, place: Place) -> None:
        """Note where a dialogue that ends with `answer` is recorded."""
        key = _digest([*messages, {"role": "assistant", "content": answer}])
        with self._lock:
            self._places[key] = place
            self._places.move_to_end(key)
            while len(self._places) > MOST_DIALOGUES:
                self._places.popitem(last=False)


def _digest(messages: Sequence[Message]) -> bytes:
    """Hash role and content of each message, framed by their lengths."""
    hasher = blake3()
    for message in messages:
        for part in (message["role"].encode(), message["content"].encode()):
            hasher.update(len(part).to_bytes(8))
            hasher.update(part)
    return hasher.digest()
