"""Canonical prefill on the GPU, whose bytes do not depend on how a prompt is cut, against plain prefill.

An 8B model with random weights, bf16, one step of 2,048 rows from position 0, by the host's clock. The peer is the
same decoder with cuBLAS, torch's norms and its flash kernel over K and V that lie side by side, rotated as transformers
does; it keeps no pages.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from cyberkv.runtime.cuda.support import Attention

from .gpu import Bench, options, require_close
from .gpu_model import CHUNK_TOKENS, random_model
from .gpu_peers import flash

CLAIM = ("canonical prefill, speed vs plain", 0.9, "the same decoder by cuBLAS and torch's flash kernel")
BOUND = 0.1
"""Of the largest score: both round to bf16 some hundred times on the way."""


class Plain:
    """See `Kernels`: each by what torch chooses, for one sequence from its beginning."""

    def __init__(self) -> None:
        self._known: tuple[Tensor, Tensor] | None = None
        """K and V of the layer that is computed."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def append_rows(self, kv: Tensor, k: Tensor, v: Tensor, *_: object) -> None:  # noqa: ARG002
        self._known = k, v

    def paged_prefill(
        self, q: Tensor, kv: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, bases: Tensor,  # noqa: ARG002
        cos: Tensor, sin: Tensor, attention: Attention,
    ) -> Tensor:  # fmt: skip
        assert self._known is not None
        k, v = self._known
        c, s = (torch.cat((table, table), dim=-1)[: len(k), None].to(q.dtype) for table in (cos, sin))
        asking, keys = (_turned(rows, c, s).transpose(0, 1)[None] for rows in (q[0], k))
        with flash() if q.is_cuda else nullcontext():
            out = F.scaled_dot_product_attention(
                asking, keys, v.transpose(0, 1)[None], is_causal=True, scale=attention.scale, enable_gqa=True
            )  # fmt: skip
        return out.transpose(1, 2)

    def paged_decode(self, *_: object) -> Tensor:
        raise NotImplementedError("a prefill decodes nothing")


def _turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat((-second, first), dim=-1) * sin


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("Canonical prefill on the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(CLAIM)
    length = bench.size(CHUNK_TOKENS, 512, 48)
    with (
        random_model(bench, tokens=length, capacity_tokens=length) as model,
        random_model(bench, tokens=length, capacity_tokens=length, kernels=Plain()) as plain,
        torch.no_grad(),
    ):
        tokens = [(7919 * i * i + 13) % model.config.vocab_size for i in range(length)]
        works = [each.prefilling(tokens) for each in (model, plain)]
        require_close(*(work() for work in works), BOUND)
        ours, peers = bench.on_host_s(*works, rounds=15, warm_up=3)
    bench.claim(*CLAIM, ours, peers)
    for name, times in {"canonical": ours, "plain": peers}.items():
        bench.figure(f"{name}, ms", times, lambda s: 1e3 * s)
        bench.figure(f"{name}, tokens/s", times, lambda s: length / s)
    return bench.report()


if __name__ == "__main__":
    raise SystemExit(main())
