"""Fitting rows of documents into a text they were not computed in, by computing some of them again.

K and V of a token hold everything before it, so rows of a document that was recorded by itself are wrong anywhere else,
from the second layer on. Raw K makes them right in one respect: they are rotated to where they stand now. The rest of
the error shrinks as tokens are computed again in place; which tokens, is chosen here:

1. the first tokens of each document, in turns: recorded with nothing before them, they drew attention that they must
   not draw here;
2. then those whose K and V differ most from the right ones in the second layer, which is known exactly for every token
   after one layer of the model has run over all of them.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.decoder import Decoder
from ..quant import Packing
from ..rope import Rotary
from .scattered import ScatteredCache

FIRST_TOKENS = 16
"""Of each document, computed again before any other."""

PROBE_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A text whose documents were fitted in."""

    cache: ScatteredCache
    recomputed: list[int]
    """Positions that went through the model, ascending."""
    probe: float
    """How far K and V of the second layer are off over the document tokens, relative: 0 is exact, and a model of one
    layer is always exact. Known without computing the text in full."""


def reconcile(
    decoder: Decoder, rotary: Rotary, tokens: Items[int], rows: Tensor, documents: Items[range], share: float,
    packing: Packing | None = None,
) -> Reconciled:  # fmt: skip
    """Compute a `share` (0 to 1) of the document tokens again, and every token after the first of them that is in none.

    Shapes: rows [tokens, layers, K|V, kv_heads, head_dim], raw; what stands after the documents may be anything finite.
    `documents` are the positions of their tokens, in order; one that begins the text is right as it is. Effects: `rows`
    are taken over and changed. With a `packing`, computed rows are as they will be stored.
    """
    foreign = [span for span in documents if span.start > 0]
    inside = [at for span in foreign for at in span]
    off, norm = _deviation(decoder, rotary, tokens, rows, inside, packing)
    budget = round(share * len(inside))
    chosen = set(_order(foreign, off / norm.clamp_min(torch.finfo(norm.dtype).tiny))[:budget])
    left = torch.tensor([at not in chosen for at in inside], dtype=torch.bool)
    probe = float((off[left].sum() / norm.sum()).sqrt()) if inside else 0.0
    cache, recomputed = fit(decoder, rotary, tokens, rows, documents, chosen, packing)
    return Reconciled(cache, recomputed, probe)


def fit(
    decoder: Decoder, rotary: Rotary, tokens: Items[int], rows: Tensor, documents: Items[range], chosen: Iterable[int],
    packing: Packing | None = None,
) -> tuple[ScatteredCache, list[int]]:  # fmt: skip
    """Compute the `chosen` document tokens again, and those after the first document that are in none.

    Shapes and effects as `reconcile`. Returns also the positions of all that was computed, ascending.
    """
    own = {at for span in documents for at in span}
    after = (at for at in range(documents[0].start, len(tokens)) if at not in own)
    recomputed = sorted({*chosen, *after})
    cache = ScatteredCache(decoder.config, rotary, rows, packing)
    if recomputed:
        cache.compute(decoder, tokens, recomputed)
    return cache, recomputed


def _deviation(
    decoder: Decoder, rotary: Rotary, tokens: Items[int], rows: Tensor, inside: list[int],
    packing: Packing | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compare the rows that documents bring with the right ones, in the second layer (the first of a model of one).

    Shapes: -> squared distance [len(inside)], squared norm of the right ones [len(inside)], float64. K and V weigh the
    same, whatever their scales.
    """
    layer = min(PROBE_LAYERS, rows.shape[1]) - 1
    if not inside:
        return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    cache = ScatteredCache(decoder.config, rotary, rows[:, : layer + 1].clone(), packing)
    cache.compute(decoder.truncated(layer + 1), tokens, inside)
    right = cache.rows[inside, layer].double()
    brought = rows[inside, layer].double()
    scale = right.pow(2).sum(dim=(0, 2, 3)).clamp_min(torch.finfo(torch.float64).tiny)  # of K and of V
    off = ((brought - right).pow(2).sum(dim=(2, 3)) / scale).sum(dim=1)
    return off, (right.pow(2).sum(dim=(2, 3)) / scale).sum(dim=1)


def _order(documents: Items[range], deviation: Tensor) -> list[int]:
    """List the tokens of documents, the one to compute first at the head. Ties go to the earlier position."""
    heads = [span[at] for at in range(FIRST_TOKENS) for span in documents if at < len(span)]
    inside = [at for span in documents for at in span]
    first, off = {*heads}, deviation.tolist()
    rest = sorted((at for at in zip(inside, off, strict=True) if at[0] not in first), key=lambda at: (-at[1], at[0]))
    return [*heads, *(at for at, _ in rest)]
