"""The part of the known-answer test that says whether conversations may share a step here."""

import torch
from torch import Tensor

from ..attention.panels import FLOOR_ROWS, PANEL_KEYS
from ..models.decoder import Decoder
from ..sequence import Sequence
from .processor import Processor
from .step import Span


def try_shared_steps(
    processor: Processor, decoder: Decoder, tokens: list[int], whole: Sequence, short: Sequence, floor_rows: int
) -> bool:
    """Go on with two conversations in shared steps and say whether the longer one's rows are as they were.

    `whole` has the canonical rows of all `tokens`; its last ones are computed again as rows at any position, several at
    once, then alone, beside those of `short`, which has the first block of the same tokens.
    """
    size = whole.pool.geometry.block_size
    expected = raw_rows(whole, len(tokens))
    seats = processor.seats(decoder.config, whole.pool, 2)
    position, behind = max(0, len(tokens) - 2 * FLOOR_ROWS) // size * size, size
    whole.truncate_table(-(-position // size))
    whole.extend_table(len(tokens))
    for rows in (FLOOR_ROWS, 3, 1, 1):
        rows = min(rows, len(tokens) - position, PANEL_KEYS - position % PANEL_KEYS)
        if rows <= 0:
            break
        spans = []
        for sequence, start, count in ((whole, position, rows), (short, behind, 1)):
            sequence.extend_table(start + count)
            seats.take(sequence, start)
            spans.append(Span(sequence, start, tuple(tokens[start : start + count]), seated=True))
        step = processor.step(decoder, seats, spans, floor_rows)
        step.run()
        for span in spans:
            step.settle(span, range(len(span.tokens)))
        position, behind = position + rows, behind + 1
    return torch.equal(raw_rows(whole, position), expected[:position]) and torch.equal(
        raw_rows(short, behind), expected[:behind]
    )


def try_scores_together(decoder: Decoder, hidden: Tensor) -> bool:
    """Say whether scores of several rows are, bit for bit, those of each. Shapes: hidden [n, hidden_size]."""
    alone = torch.stack([decoder.logits(row) for row in hidden])
    return all(torch.equal(decoder.logits_of(hidden[:count]), alone[:count]) for count in {2, len(hidden)})


def raw_rows(sequence: Sequence, length: int) -> Tensor:
    """Copy raw rows to the host. Shape: [length, num_layers, K|V, kv_heads, width]."""
    g, packing = sequence.pool.geometry, sequence.pool.packing
    shape = (len(sequence.table), g.num_layers, 2, g.block_size, g.num_kv_heads, packing.width)
    data = bytearray().join(leaf for leaves in sequence.pool.read(sequence.table) for leaf in leaves)
    rows = torch.frombuffer(data, dtype=packing.stored_dtype).view(shape)
    return rows.permute(0, 3, 1, 2, 4, 5).flatten(0, 1)[:length]
