"""What pages need from outside: the words of a model's tokens, and numbers out of its leaves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ...cid import Buffer, Cid
from ...nodes import Model


class TextDecoder(Protocol):
    """A tokenizer, as far as pages need one."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text."""


TextOf: TypeAlias = Callable[[Cid], TextDecoder | None]
"""Finds the tokenizer of a model by the CID of its identity; None where there is none."""

NormsOf: TypeAlias = Callable[[Model, Sequence[Buffer]], list[list[list[float]]]]
"""Root mean square of a block's K and V out of its leaves: [layer][K, V][KV head]. The leaves have the sizes that the
model says."""


def no_text(_model: Cid) -> TextDecoder | None:
    """Know no tokenizer."""
    return None


@dataclass(frozen=True)
class Lookups:
    """The lookups of one server. What is left out is said on the pages, in place of what it would show."""

    text: TextOf = no_text
    norms: NormsOf | None = None
