"""A decode step on the GPU, launched as a whole as it was captured, against launched kernel by kernel.

An 8B model with random weights, bf16, with 1,024 tokens before: one conversation, and sixteen together. By the host's
clock, from an idle device to an idle device.
"""

from collections.abc import Callable, Sequence

import torch

from cyberkv.runtime.cuda.cache import Part

from .gpu import Bench, options
from .gpu_model import Model, random_model

COUNTS = (1, 16)
PEER = "the same step, launched kernel by kernel"
CLAIMS = {count: (f"decode step of {count}, captured, speed", 1.0, PEER) for count in COUNTS}


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("Captured decode steps on the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(*CLAIMS.values())
    length = bench.size(1024, 1024, 32)
    with random_model(bench, tokens=length, capacity_tokens=sum(COUNTS) * length) as model, torch.no_grad():
        for count, claim in CLAIMS.items():
            parts = [Part(model.rows(length), length - 1, (number,)) for number in range(count)]
            captured, plain = _step(model, parts, captures=True), _step(model, parts, captures=False)
            ours, peers = bench.on_host_s(captured, plain, rounds=25, warm_up=3)
            bench.claim(*claim, ours, peers)
            bench.figure(f"{count} together, captured, ms a step", ours, lambda s: 1e3 * s)
            bench.figure(f"{count} together, launched, ms a step", peers, lambda s: 1e3 * s)
    return bench.report()


def _step(model: Model, parts: list[Part], *, captures: bool) -> Callable[[], object]:
    workspace = model.workspace(captures=captures)
    return lambda: workspace.run(model.decoder, parts, provisional=True)


if __name__ == "__main__":
    raise SystemExit(main())
