"""One load of one conversation in a process that has just started; prints seconds, without the imports.

Nothing was touched before, neither by the store nor by its peers: each allocates what it fills.

    python -m cyberkv.benchmarks.store_loads KIND FOLDER
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from cyberkv.cybergraph.cid import CID_BYTES, Cid
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.pool import Pool

SMOLLM2 = Geometry(30, 3, 64, block_size=16, layers_per_leaf=10, dtype="f32")


def save(folder: Path, pool: Pool, blocks: int, leaves: list[Cid]) -> None:
    """Write what the peers load, and the names of what the store gives."""
    tensors = {f"{kind}.{layer}": pool.rows[:blocks, layer, part].contiguous()
               for layer in range(SMOLLM2.num_layers) for part, kind in enumerate(("keys", "values"))}  # fmt: skip
    torch.save(tensors, folder / "cache.pt")
    save_file(tensors, folder / "cache.safetensors")
    (folder / "leaves").write_bytes(b"".join(leaves))


def load_store(folder: Path) -> object:
    names = (folder / "leaves").read_bytes()
    leaves = [Cid(names[start : start + CID_BYTES]) for start in range(0, len(names), CID_BYTES)]
    pool = Pool(SMOLLM2, len(leaves) // SMOLLM2.leaves_per_block)
    rows = [view for row in range(len(leaves) // SMOLLM2.leaves_per_block) for view in pool.leaves(row)]
    with DiskStore(folder / "conversation", read_only=True) as store:
        store.get_into(leaves, rows)
    return pool


def load_torch(folder: Path) -> object:
    return torch.load(folder / "cache.pt")


def load_safetensors(folder: Path) -> object:
    return {name: tensor.clone() for name, tensor in load_file(folder / "cache.safetensors").items()}


LOADS: dict[str, Callable[[Path], object]] = {
    "store": load_store, "torch.load": load_torch, "safetensors load + clone": load_safetensors,
}  # fmt: skip


def fresh_loads_s(folder: Path, repeats: int) -> dict[str, float]:
    """Shortest of `repeats` loads of each kind, each in a process of its own, taken in turns."""
    best = dict.fromkeys(LOADS, float("inf"))
    for _ in range(repeats):
        for kind in LOADS:
            command = [sys.executable, "-m", "cyberkv.benchmarks.store_loads", kind, str(folder)]
            best[kind] = min(best[kind], float(subprocess.run(command, capture_output=True, check=True).stdout))
    return best


if __name__ == "__main__":
    start = time.perf_counter()
    kept = LOADS[sys.argv[1]](Path(sys.argv[2]))
    print(time.perf_counter() - start)
