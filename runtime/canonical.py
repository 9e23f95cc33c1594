"""Canonical compute: the schedule that makes equal inputs give equal bytes.

A row's bytes are those of a forward in which at least 16 rows go through every linear layer and attention is summed
over fixed panels (`attention.panels`). Chunk length is then free. Whether that holds here, and whether fewer rows would
do, is measured, not believed: `probe` computes the same rows under several schedules with the model's own first layers,
and names the numeric domain by what it got.
"""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

import torch
from blake3 import blake3
from torch import Tensor

from ..cybergraph.errors import UnsafeNumerics
from .attention.panels import FLOOR_ROWS, PANEL_KEYS, step_rows
from .geometry import Geometry
from .models.decoder import Decoder
from .pool import BlockPool
from .sequence import Sequence
from .steps.processor import Processor
from .steps.trial import raw_rows, try_scores_together, try_shared_steps

CHUNK_TOKENS = 1024
"""Rows of one prefill step: long enough to run at full speed, short enough to seal, show progress and stop."""

PROBE_TOKENS = PANEL_KEYS + FLOOR_ROWS
PROBE_LAYERS = 3
PROBE_SINGLE = 3
SCORED_ROWS = 8

Step = Callable[[Decoder, Sequence, Tokens[int], int], Tensor]


@torch.no_grad()
def canonical_step(
    decoder: Decoder, sequence: Sequence, tokens: Tokens[int], start: int, floor_rows: int = FLOOR_ROWS
) -> Tensor:
    """Run tokens that stand at `start` on, padded to at least `floor_rows` rows. One token, or from a block boundary.

    Shapes: n tokens -> hidden states [n, hidden_size]. Effects: K and V of the n positions are written unless the
    sequence is frozen. The content of padding rows is irrelevant; token 0 is used.
    """
    count = len(tokens)
    padded = step_rows(count, floor_rows)
    sequence.reserve(start + padded)
    rows = torch.zeros(padded, dtype=torch.int64)
    rows[:count] = torch.tensor(tokens)
    return sequence.forward(decoder, rows, start, count)


def single_step(decoder: Decoder, sequence: Sequence, tokens: Tokens[int], start: int) -> Tensor:
    """Run tokens one by one; where 16 rows are needed, their rows are provisional. Otherwise as `canonical_step`."""
    return torch.cat([canonical_step(decoder, sequence, [t], start + i, 1) for i, t in enumerate(tokens)])


@dataclass(frozen=True, slots=True)
class Domain:
    """A setting in which equal inputs give equal bytes, or the reason why this one is none."""

    name: str
    """`<dtype>-<16 hex digits>`, with the kind of a device between: of one name, the same known answer was computed."""
    rows: str
    """The same for rows of a tail, which are loaded only where they would be computed alike: `name` where a row alone
    is canonical, else `<name>/<threads>-<8 hex digits>`, for such rows may depend on the number of threads."""
    broken: str | None = None
    """What differed, or None."""
    scattered: str | None = None
    """What differed when rows of several conversations shared a step, or None: then such rows are canonical, too."""
    scores_together: bool = False
    """Whether scores of several rows have the bytes of each row's own."""
    floor_rows: int = FLOOR_ROWS
    """Rows of a canonical step at least: 1 where a row alone has the same bytes, else 16."""

    def require_sound(self) -> None:
        """Raise `UnsafeNumerics` where the canonical rule does not hold."""
        if self.broken:
            raise UnsafeNumerics(
                f"nothing may be sealed here: {self.broken}",
                hint="run `cyberkv doctor`; pinning the instruction set may help (docs/design.md)",
                domain=self.name,
            )


def probe(decoder: Decoder, processor: Processor, geometry: Geometry, *, step: Step = canonical_step) -> Domain:
    """Known-answer test: fixed tokens through the first layers, under four schedules that must agree.

    Schedules: one chunk; blocks of 16; an uneven cut; one chunk on a single thread. A fifth one, rows alone on either
    number of threads, decides how many rows a step needs; a sixth, rows of two conversations in one step, whether
    conversations may share steps. Effects: takes about as long as prefilling some hundred tokens; sets the thread count
    and puts it back.
    """
    decoder = decoder.truncated(PROBE_LAYERS)
    geometry = replace(geometry, block_size=min(FLOOR_ROWS, geometry.block_size), layers_per_leaf=1)
    count = min(PROBE_TOKENS, decoder.config.max_positions - PROBE_SINGLE)
    vocabulary = decoder.embeddings.shape[0]
    tokens = [(7919 * i * i + 104729 * i + 13) % vocabulary for i in range(count + PROBE_SINGLE)]

    def fresh(pool: BlockPool) -> Sequence:
        return processor.sequence(decoder.config, pool, processor.memory(decoder.config, pool))

    def run(cuts: Tokens[int], single: int = 0) -> bytes:
        """Compute in steps that end at `cuts`, and then so many rows one by one."""
        pool = processor.pool(geometry, -(-(count + single) // geometry.block_size))
        sequence = fresh(pool)
        sequence.extend_table(count + single)
        start = 0
        for end in cuts:
            step(decoder, sequence, tokens[start:end], start)
            start = end
        for position in range(start, count + single):
            single_step(decoder, sequence, [tokens[position]], position)
        # By position, not by block: the answer then has one name whatever the block size.
        layers = raw_rows(sequence, count + single)[:, : len(decoder.layers)]
        return blake3(layers.contiguous().view(torch.uint8).numpy().data).digest()

    size, threads = FLOOR_ROWS, torch.get_num_threads() if processor.is_threaded else 1
    answer = run([count])
    name = "-".join(filter(None, (geometry.dtype, processor.kind, answer.hex()[:16])))
    steps = [*range(size, count, size), count]
    schedules = {f"steps of {size}": steps, "an uneven cut": sorted({*steps[:1], *steps[2:3], count})}
    for schedule, cuts in schedules.items():
        if run(cuts) != answer:
            return Domain(name, name, f"{schedule} gave other bytes than one chunk")
    # The last two steps row by row: they lie on both sides of the end of a panel.
    alone = processor.is_single_canonical and run(steps[-3:-2]) == answer
    if processor.is_threaded:
        try:
            torch.set_num_threads(1 if threads > 1 else 2)
            if run([count]) != answer:
                return Domain(name, name, f"{torch.get_num_threads()} threads gave other bytes than {threads}")
            alone = alone and run(steps[-3:-2]) == answer
        finally:
            torch.set_num_threads(threads)
    floor_rows, rows = 1, name
    if not alone:
        floor_rows, rows = FLOOR_ROWS, f"{name}/{threads}-{run([count], PROBE_SINGLE).hex()[:8]}"
    pool = processor.pool(geometry, 2 * -(-(count + FLOOR_ROWS) // geometry.block_size))
    whole, short = fresh(pool), fresh(pool)
    for sequence, length in ((whole, count), (short, geometry.block_size)):
        sequence.extend_table(length)
        hidden = step(decoder, sequence, tokens[:length], 0)
    scattered = None
    if not try_shared_steps(processor, decoder, tokens[:count], whole, short, floor_rows):
        scattered = "rows of two conversations in one step gave other bytes than one chunk"
    together = try_scores_together(decoder, hidden[:SCORED_ROWS].clone())
    return Domain(name, rows, None, scattered, together, floor_rows)
