"""A few rows times a matrix, as decoding does it: a packed matrix against the library's routine for plain ones."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads; see docs/design.md, Threads

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from cyberkv.runtime.models.linear import Matrix

from .common import Claim, best_in_turns_s, best_s, options, report

OUTPUTS, INPUTS = 3072, 576
"""The widest matrix of SmolLM2-135M: gate and up together."""


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    weights = torch.randn(8 if args.quick else 80, OUTPUTS, INPUTS)  # more than a cache holds, as a model is
    matrices = [Matrix(weight) for weight in weights]
    size_gb = weights.nbytes / 1e9
    claims, figures = list[Claim](), dict[str, float]()
    for count in (1, 8, 16):
        rows = torch.randn(count, INPUTS)
        packed_s, plain_s = best_in_turns_s(
            lambda rows=rows: [matrix(rows) for matrix in matrices],
            lambda rows=rows: [F.linear(rows, weight) for weight in weights],
            repeats=3 if args.quick else 20,
        )
        claims.append(Claim(f"{count} row(s), packed, speed vs plain", plain_s / packed_s, 0.95))
        figures[f"{count} row(s), packed, GB/s of weights"] = size_gb / packed_s
        figures[f"{count} row(s), plain, GB/s of weights"] = size_gb / plain_s
    sum_s = best_s(weights.sum, 3 if args.quick else 20)
    figures["torch.sum over the same bytes, GB/s"] = size_gb / sum_s
    return report(args, "A few rows", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
