"""Which recorded conversation a list of messages goes on from.

A client of the protocol sends the whole dialogue with every turn and knows nothing of names. The book remembers each
dialogue by a digest of its messages, answer included, so that the next turn is recorded under the same name.

>>> book = Book()
>>> first = ({"role": "user", "content": "Hi"},)
>>> book.remember(first, "Hello.", "greeting")
>>> book.name_for((*first, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And now?"}))
'greeting'
>>> book.name_for(first) is None
True
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

from blake3 import blake3

from .protocol import Message

MOST_DIALOGUES: Final = 4096
"""Of more, those that went on longest ago are forgotten; their next turn begins a new name."""


class Book:
    """Names by dialogue. Safe for use by several threads."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def name_for(self, messages: Sequence[Message]) -> str | None:
        """Give the name of the dialogue that these messages go on from, if it took place here."""
        ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not ends:
            return None
        with self._lock:
            return self._names.get(_digest(messages[: ends[-1] + 1]))

    def remember(self, messages: Sequence[Message], answer: str, name: str) -> None:
        """Note where a dialogue that ends with `answer` is recorded."""
        key = _digest([*messages, {"role": "assistant", "content": answer}])
        with self._lock:
            self._names[key] = name
            self._names.move_to_end(key)
            while len(self._names) > MOST_DIALOGUES:
                self._names.popitem(last=False)


def _digest(messages: Sequence[Message]) -> bytes:
    """Hash role and content of each message, framed by their lengths."""
    hasher = blake3()
    for message in messages:
        for part in (message["role"].encode(), message["content"].encode()):
            hasher.update(len(part).to_bytes(8))
            hasher.update(part)
    return hasher.digest()
