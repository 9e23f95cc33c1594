"""One row times a matrix, as decoding does it: a batch over parts of the matrix against the library's own routine."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads; see docs/design.md, Threads

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from cyberkv.runtime.models.linear import linear

from .common import Claim, best_in_turns_s, options, report

OUTPUTS, INPUTS = 3072, 576
"""The widest matrix of SmolLM2-135M: gate and up together."""


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    weights = torch.randn(8 if args.quick else 80, OUTPUTS, INPUTS)  # more than a cache holds, as a model is
    row = torch.randn(1, INPUTS)
    parts_s, routine_s, sum_s = best_in_turns_s(
        lambda: [linear(row, weight) for weight in weights],
        lambda: [F.linear(row, weight) for weight in weights],
        weights.sum,
        repeats=3 if args.quick else 20,
    )
    size_gb = weights.nbytes / 1e9
    claims = [Claim("one row, in parts, speed vs the library's routine", routine_s / parts_s, 0.95)]
    figures = {
        "in parts, GB/s of weights": size_gb / parts_s,
        "the library's routine, GB/s of weights": size_gb / routine_s,
        "torch.sum over the same bytes, GB/s": size_gb / sum_s,
    }
    return report(args, "One row", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
