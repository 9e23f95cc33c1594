"""Blocks from the host to the GPU: verified, from a store in the page cache, against an unverified copy and files.

4 GiB in blocks of an 8B model (2 MiB, eight leaves of 256 KiB, blake3). The copy is from page-locked memory that holds
everything already, the fastest there is. The files hold the same bytes as tensors and are in the page cache, too. By
the host's clock, until the last byte is on the device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.cuda.devicepool import DevicePool
from cyberkv.runtime.geometry import Geometry

from . import made_up
from .common import scratch
from .gpu import Bench, options
from .gpu_host import device_of
from .store_peers import warm_pages

BLOCKS_AT_ONCE = 64
LEAF_BYTES = 256 << 10
FILE_TENSORS = 64
CLAIMS = {
    "copy": ("restore, verified, speed vs a copy", 0.8, "a copy from page-locked memory, nothing verified"),
    "torch": ("restore, verified, speed vs torch.load", 1.0, "torch.load to the device, nothing verified"),
    "safetensors": ("restore, verified, speed vs safetensors", 1.0, "safetensors to the device, nothing verified"),
}


def main(argv: Sequence[str] | None = None) -> int:
    bench = Bench("Restore to the GPU", options(argv, __doc__ or ""))
    if not bench.runs:
        return bench.absent(*CLAIMS.values())
    blocks = bench.size(2048, 256, 2)
    with scratch(bench.args.folder) as folder, _stored(folder, blocks) as (store, leaves):
        works = _works(bench, folder, store, leaves)
        times = dict(zip(works, bench.on_host_s(*works.values(), rounds=5), strict=True))
    for name, claim in CLAIMS.items():
        bench.claim(*claim, times["ours"], times[name])
    for name, taken in times.items():
        bench.figure(f"{name}, GB/s", taken, lambda s: blocks * made_up.BLOCK_BYTES / s / 1e9)
    return bench.report()


@contextmanager
def _stored(folder: Path, blocks: int) -> Iterator[tuple[DiskStore, list[list[Cid]]]]:
    """Fill a store with leaves that all differ; give it, and the leaves of each block."""
    per_block, leaves = made_up.BLOCK_BYTES // LEAF_BYTES, list[list[Cid]]()
    source = made_up.leaves(LEAF_BYTES)
    with DiskStore(folder / "store") as store:
        for start in range(0, blocks, BLOCKS_AT_ONCE):
            count = min(BLOCKS_AT_ONCE, blocks - start)
            named = [(Cid.of(data, "raw", "blake3"), data) for data in islice(source, count * per_block)]
            store.put_many(named, hashed=True)
            names = [cid for cid, _ in named]
            leaves += [names[at : at + per_block] for at in range(0, len(names), per_block)]
        warm_pages(folder / "store")
        yield store, leaves


def _works(bench: Bench, folder: Path, store: DiskStore, leaves: list[list[Cid]]) -> dict[str, Callable[[], object]]:
    """Give what is timed, and see first that it brings the right bytes. Effects: writes the peers' files."""
    geometry = Geometry(
        made_up.LAYERS,
        made_up.KV_HEADS,
        made_up.HEAD_DIM,
        made_up.BLOCK_SIZE,
        LEAF_BYTES // made_up.LAYER_BYTES,
        "bf16",
    )
    pool = DevicePool(device_of(bench), geometry, len(leaves))
    rows = [pool.allocate() for _ in leaves]
    pool.fill(store, leaves, rows)
    pool.drain()
    whole = pool.bytes.cpu()
    for block in (0, len(leaves) - 1):
        expected = b"".join(store.get(leaf) for leaf in leaves[block])
        if whole[rows[block]].numpy().tobytes() != expected:
            raise AssertionError("other bytes on the device than in the store")
    pinned, target = whole.pin_memory() if bench.present else whole, torch.empty_like(pool.bytes)
    tensors = {str(i): part for i, part in enumerate(whole.tensor_split(min(FILE_TENSORS, len(leaves))))}
    torch.save({name: part.clone() for name, part in tensors.items()}, folder / "cache.pt")
    save_file(tensors, folder / "cache.safetensors")

    return {
        "ours": lambda: pool.fill(store, leaves, rows),
        "copy": lambda: target.copy_(pinned, non_blocking=True),
        "torch": lambda: torch.load(folder / "cache.pt", map_location=bench.device),
        "safetensors": lambda: load_file(folder / "cache.safetensors", device=str(bench.device)),
    }


if __name__ == "__main__":
    raise SystemExit(main())
