"""The first token after a long prompt on the GPU: from blocks in the store against computing the prompt.

An 8B model with random weights, bf16, a prompt of 8,192 tokens. Stored: its 512 blocks are read (from the page cache),
verified and brought to the device, then the last row is computed. The peer computes the prompt in steps of 2,048 rows.
Whether both give the same bits of scores is a figure beside it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store.disk import DiskStore

from .common import scratch
from .gpu import Bench, options, require_close
from .gpu_model import Model, random_model

BLOCKS_AT_ONCE = 64
CLAIM = ("first token after a stored prompt, speed vs computing it", 3.0, "prefill by the same kernels")


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("First token on the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(CLAIM)
    length = bench.size(8192, 2048, 48)
    with (
        scratch(bench.args.folder) as folder,
        DiskStore(folder / "store") as store,
        random_model(bench, tokens=length, capacity_tokens=2 * length) as model,
        torch.no_grad(),
    ):
        tokens = [(7919 * i * i + 13) % model.config.vocab_size for i in range(length)]
        stored, computed = _ways(model, store, tokens)
        scores, expected = stored(), computed()
        require_close(scores, expected)
        bench.figures["both ways give the same bits of scores (1 is yes)"] = float(torch.equal(scores, expected))
        ours, peers = bench.on_host_s(stored, computed, rounds=5)
    bench.claim(*CLAIM, ours, peers)
    bench.figure("from the store, ms", ours, lambda s: 1e3 * s)
    bench.figure("by prefill, ms", peers, lambda s: 1e3 * s)
    bench.figure("by prefill, tokens/s", peers, lambda s: length / s)
    return bench.report()


def _ways(model: Model, store: DiskStore, tokens: list[int]) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Compute the prompt, store it, and give both ways to its scores."""
    workspace, pool = model.workspace(), model.pool
    computed_rows, stored_rows = model.rows(len(tokens)), model.rows(len(tokens))
    model.prefill(workspace, computed_rows, tokens)
    names: list[list[Cid]] = []
    for start in range(0, len(computed_rows), BLOCKS_AT_ONCE):
        blocks = pool.read(computed_rows[start : start + BLOCKS_AT_ONCE])
        named = [[(Cid.of(leaf, "raw", "blake3"), leaf) for leaf in leaves] for leaves in blocks]
        store.put_many([each for leaves in named for each in leaves], hashed=True)
        names += [[cid for cid, _ in leaves] for leaves in named]

    def stored() -> Tensor:
        while stored_rows:
            pool.release(stored_rows.pop())
        stored_rows.extend(model.rows(len(tokens)))
        pool.fill(store, names, stored_rows)
        return model.next_scores(workspace, stored_rows, tokens)

    return stored, lambda: model.prefill(workspace, computed_rows, tokens)


if __name__ == "__main__":
    raise SystemExit(main())
