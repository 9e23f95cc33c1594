"""Under the canonical rule a row's bytes do not depend on the schedule; without it they do. Exact counts, not times."""

import random
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from cyberkv.runtime.attention import panels
from cyberkv.runtime.canonical import canonical_step, single_step
from cyberkv.runtime.engine import Engine

from .common import Claim, options, report
from .real_model import fresh_engine, load_smollm2, prompt


def rows_after(engine: Engine, tokens: list[int], cuts: Sequence[int]) -> Tensor:
    """Raw rows of all layers, [blocks, layers, ...], computed in steps that end at `cuts`; one token is one row."""
    sequence = engine.new_sequence()
    sequence.extend_table(len(tokens))
    start = 0
    for end in [*cuts, len(tokens)]:
        step = single_step if end - start == 1 else canonical_step
        step(engine.decoder, sequence, tokens[start:end], start)
        start = end
    rows = engine.pool.rows[torch.tensor(sequence.table)].clone()
    sequence.release()
    return rows


def equal_layers(a: Tensor, b: Tensor) -> int:
    return sum(torch.equal(a[:, layer], b[:, layer]) for layer in range(a.shape[1]))


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    count = 144 if args.quick else 1040
    loaded = load_smollm2()
    tokens = prompt(count, loaded.config.vocab_size)
    threads, layers = torch.get_num_threads(), loaded.config.num_layers
    draw = random.Random(1)
    blocks = range(16, count, 16)
    schedules: dict[str, tuple[Sequence[int], int]] = {
        f"chunks of {size}, {n} thread(s)": (range(size, count, size), n) for size in (16, 64, 256) for n in (1, 2)
    }
    schedules["random multiples of 16, 2 threads"] = (sorted(draw.sample(blocks, len(blocks) // 3)), 2)
    schedules |= {f"second half row by row, {n} thread(s)": (range(count // 2, count), n) for n in (1, 2)}
    figures: dict[str, float] = {}
    with fresh_engine(loaded, args.folder) as engine:
        torch.set_num_threads(1)
        expected = rows_after(engine, tokens, [])
        for name, (cuts, n) in schedules.items():
            torch.set_num_threads(n)
            figures[f"{name}: layers equal of {layers}"] = equal_layers(expected, rows_after(engine, tokens, cuts))
        torch.set_num_threads(threads)
        with patch.object(panels, "PANEL_KEYS", 128):
            control = equal_layers(expected, rows_after(engine, tokens, []))
    figures[f"control, keys summed in other panels: layers equal of {layers}"] = control
    worst = min(figures[f"{name}: layers equal of {layers}"] for name in schedules)
    claims = [
        Claim("layers equal under the worst canonical schedule", worst, layers, "layers"),
        Claim("layers equal in the control", control, layers - 1, "layers", at_most=True),
    ]
    return report(args, "Canonical bytes", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
