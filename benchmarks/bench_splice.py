"""What a spliced document is off by, as a function of how much of it is computed again, and what that costs.

A question after two documents that were recorded by themselves, placed behind an instruction. The peer is computing the
whole text. Exact composition is the last line: there is no share below all of it at which the error is nothing.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.models.registry import LoadedModel
from cyberkv.runtime.splice.measure import SpliceError, Text, compute_in_full, error_of, text_of
from cyberkv.runtime.splice.reconcile import fit, reconcile

from .common import Claim, best_in_turns_s, options, report, scratch
from .real_model import load_smollm2

SHARES = (0.0, 0.02, 0.05, 0.10, 0.20, 0.40, 0.70, 1.0)
INSTRUCTION = "Answer the question from the documents. Say so if they do not have the answer.\n\n"
SENTENCES = (
    "The lighthouse at {0} was built in {1} and has a lamp of {2} candles.",
    "Its keeper in those years was called {3}, who wrote down every ship that passed.",
    "On the night of the great storm {2} ships lay in the bay of {0}, and {3} kept the light until dawn.",
    "In {1} the council of {0} paid for a new lens, which came from abroad and broke on the way.",
    "What is left of it stands in the museum of {0}, beside the log book of {3}.",
)
PLACES = (
    ("Northmoor", 1811, 41, "Anna Weir"),
    ("Saltby", 1874, 17, "Tobias Crane"),
    ("Eastness", 1902, 63, "Mary Lund"),
)
QUESTION = "\n\nQuestion: who kept the light at {} in the night of the great storm?\nAnswer:"


def document(loaded: LoadedModel, which: int, count: int) -> list[int]:
    """Text of a document, cut to `count` tokens."""
    assert loaded.text is not None
    tokens: list[int] = []
    number = which
    while len(tokens) < count:
        place, year, ships, keeper = PLACES[number % len(PLACES)]
        lines = (line.format(place, year + number, ships + number, keeper) for line in SENTENCES)
        tokens += loaded.text.encode(" ".join(lines) + "\n", special=False)
        number += 2
    return tokens[:count]


class Setup:
    """A text with documents in it, and the rows that they were recorded with."""

    def __init__(self, engine: Engine, loaded: LoadedModel, count: int) -> None:
        assert loaded.text is not None
        before = loaded.text.encode(INSTRUCTION, special=False)
        documents = [document(loaded, which, count) for which in (0, 1)]
        after = loaded.text.encode(QUESTION.format(PLACES[1][0]), special=False)
        self.engine = engine
        self.tokens = [*before, *documents[0], *documents[1], *after]
        self.at = len(before)
        self.spans = [range(self.at, self.at + count), range(self.at + count, self.at + 2 * count)]
        g = engine.geometry
        self._rows = torch.zeros(len(self.tokens), g.num_layers, 2, g.num_kv_heads, g.head_dim)
        self._rows[: self.at] = compute_in_full(engine, before).rows
        for span, tokens in zip(self.spans, documents, strict=True):
            self._rows[span.start : span.stop] = compute_in_full(engine, tokens).rows

    def rows(self) -> Tensor:
        return self._rows.clone()

    def text(self, share: float) -> Text:
        made = reconcile(self.engine.decoder, self.engine.rotary, self.tokens, self.rows(), self.spans, share)
        return text_of(self.engine, self.tokens, made.cache)

    def text_by_chance(self, share: float, seed: int) -> Text:
        """The control: as many tokens computed again, drawn at random."""
        inside = [at for span in self.spans for at in span]
        drawn = random.Random(seed).sample(inside, round(share * len(inside)))
        cache, _ = fit(self.engine.decoder, self.engine.rotary, self.tokens, self.rows(), self.spans, drawn)
        return text_of(self.engine, self.tokens, cache)


def largest(error: SpliceError) -> float:
    return max(max(layer.k, layer.v) for layer in error.layers)


def mean(error: SpliceError) -> float:
    return sum((layer.k + layer.v) / 2 for layer in error.layers) / len(error.layers)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    count, repeats = (192, 1) if args.quick else (768, 3)
    shares = (0.0, 0.20, 1.0) if args.quick else SHARES
    loaded = load_smollm2()
    figures: dict[str, float] = {}
    errors: dict[float, SpliceError] = {}
    with scratch(args.folder) as home, DiskStore(home / "store") as store, Index(home / "index") as index:
        setup = Setup(build_engine(loaded, store, index), loaded, count)
        right = compute_in_full(setup.engine, setup.tokens)
        works = [lambda share=share: setup.text(share) for share in shares]
        full_s, *times = best_in_turns_s(
            lambda: compute_in_full(setup.engine, setup.tokens), *works, repeats=repeats
        )  # fmt: skip
        figures[f"tokens, {2 * count} of them in documents"] = len(setup.tokens)
        figures["everything computed, s"] = full_s
        for share, spent_s in zip(shares, times, strict=True):
            errors[share] = error = error_of(setup.text(share), right, setup.at)
            name = f"{share:4.0%} computed again"
            figures[f"{name}: K/V off, mean over layers"] = mean(error)
            figures[f"{name}: K/V off, worst layer"] = largest(error)
            figures[f"{name}: scores off by at most"] = error.logits_max_abs
            figures[f"{name}: KL, nats"] = error.kl
            figures[f"{name}: likeliest token the same"] = float(error.same_choice)
            figures[f"{name}: time against computing everything"] = spent_s / full_s
        drawn = [error_of(setup.text_by_chance(0.20, seed), right, setup.at) for seed in range(3)]
    chance = sum(map(mean, drawn)) / len(drawn)
    figures[" 20% drawn at random: K/V off, mean over layers"] = chance
    figures[" 20% drawn at random: KL, nats"] = sum(error.kl for error in drawn) / len(drawn)
    first = max(max(error.layers[0].k, error.layers[0].v) for error in errors.values())
    claims = [
        Claim("K/V of the first layer off, at every share", first, 0.0, "relative", at_most=True),
        Claim("K/V off at 100 %, worst layer", largest(errors[1.0]), 1e-3, "relative", at_most=True),
        Claim("K/V off without computing any again, worst layer", largest(errors[0.0]), 0.05, "relative"),
        Claim("K/V off at 20 %, mean, against none", mean(errors[0.20]) / mean(errors[0.0]), 0.9, at_most=True),
        Claim("K/V off at 20 %, mean, against as many at random", mean(errors[0.20]) / chance, 0.95, at_most=True),
    ]
    return report(args, "Splice", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
