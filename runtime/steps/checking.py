"""Guessing and choosing: drafts, and the choice of tokens after the rows of several conversations at once."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ..attention.panels import FLOOR_ROWS, PANEL_KEYS
from ..sampling import Sampling
from .drafting import Drafter

if TYPE_CHECKING:
    from ..engine import Engine
    from ..live import Live

ROUND_ROWS: Final = 4
"""Rows of a draft that are scored at once: scores of rows behind the first wrong guess are in vain."""


def draft(live: "Live", token: int, drafter: Drafter | None, most: int) -> tuple[int, ...]:
    """Give `token` and at most `most` guesses after it that fit into the current panel and the model's positions."""
    length, config = len(live.tokens), live.engine.config
    room = min(most, FLOOR_ROWS - 1, PANEL_KEYS - length % PANEL_KEYS - 1, config.max_positions - length - 2)
    if drafter is None or room <= 0:
        return (token,)
    guesses = drafter([*live.tokens, token])[:room]
    unknown = next((i for i, guess in enumerate(guesses) if not 0 <= guess < config.vocab_size), len(guesses))
    return (token, *guesses[:unknown])


@dataclass(frozen=True, slots=True)
class Check:
    """Rows of one conversation, after which something is to be chosen."""

    sampling: Sampling
    position: int
    """Of the first row."""
    tokens: tuple[int, ...]
    """Of the rows; all but the first are guesses."""
    hidden: Tensor
    """Their outputs. Shape: [rows, hidden_size]."""
    wanted: bool = True

    def rows(self, first: int) -> range:
        """Rows to score next."""
        return range(first, min(first + ROUND_ROWS, len(self.tokens)))

    def choose(self, scores: Tensor, rows: range, choices: list[int]) -> bool:
        """Choose after each row until a choice differs from the guess. Says whether more rows are to be scored."""
        for score, row in zip(scores, rows, strict=True):
            choices.append(self.sampling.choose(score, self.position + row + 1))
            if row + 1 == len(self.tokens) or choices[-1] != self.tokens[row + 1]:
                return False
        return True


def scores_of(engine: "Engine", hidden: Tensor) -> Tensor:
    """Scores after each row, bytes as by `Decoder.logits`. Shapes: [n, hidden_size] -> [n, vocab_size] float32."""
    if engine.domain.scores_together:
        return engine.decoder.logits_of(hidden)
    return torch.stack([engine.decoder.logits(row) for row in hidden])


def check(engine: "Engine", checks: Items[Check]) -> list[list[int]]:
    """Choose after each: one token, or for a draft as many as its guesses are right, and one; none where not wanted.

    The last choice comes next; of a draft, as many rows are kept as choices were made.
    """
    chosen: list[list[int]] = [[] for _ in checks]
    going = {i: each.rows(0) for i, each in enumerate(checks) if each.wanted}
    while going:
        hidden = torch.cat([checks[i].hidden[rows.start : rows.stop] for i, rows in going.items()])
        scores = torch.split(scores_of(engine, hidden), [len(rows) for rows in going.values()])
        going = {
            i: checks[i].rows(rows.stop)
            for (i, rows), each in zip(going.items(), scores, strict=True)
            if checks[i].choose(each, rows, chosen[i])
        }
    return chosen
