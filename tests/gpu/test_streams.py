"""Moves on a device whose copies and kernels really happen later, where there is one: rows change hands under load."""

import pytest
import torch

from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.cuda.device import Device, TorchDevice
from cyberkv.runtime.cuda.devicepool import DevicePool
from tests.contracts.synthetic import BLOCK_SIZE, make_blocks
from tests.gpu.inline import InlineDevice
from tests.laws.shelves import BLOCK_BYTES, GEOMETRY, MODEL

BLOCKS = 64
ON_GPU = torch.cuda.is_available()
DEVICES = ["host", pytest.param("cuda", marks=pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device"))]


@pytest.mark.parametrize("name", DEVICES)
def test_rows_change_hands_while_kernels_are_late(name: str) -> None:
    device: Device = TorchDevice() if name == "cuda" else InlineDevice()
    store = MemoryStore()
    leaves = [Block.decode(store.get(cid)).kv for cid in make_blocks(store, MODEL, range(BLOCKS * BLOCK_SIZE))]
    expected = [b"".join(store.get(leaf) for leaf in each) for each in leaves]
    assert len({*expected}) == BLOCKS
    pool = DevicePool(device, GEOMETRY, 3, host_bytes=2 * BLOCK_BYTES, slots=2, slot_bytes=BLOCK_BYTES)
    seen, again = [], []
    busy = torch.randn(4096, 4096, device="cuda") if name == "cuda" else torch.zeros(1, 1)
    for each in leaves:
        row = pool.allocate()
        pool.fill(store, [each], [row])
        pool.settle([row])
        busy = (busy @ busy).clamp(-1, 1)  # what is queued behind it is late
        seen.append(pool.bytes[row].clone())
        below = pool.copy_out(row)
        pool.release(row)
        other = pool.allocate()
        pool.copy_in(other, below)
        below.close()
        pool.settle([other])
        again.append(pool.bytes[other].clone())
        pool.release(other)
    pool.drain()
    assert [each.cpu().numpy().tobytes() for each in seen] == expected
    assert [each.cpu().numpy().tobytes() for each in again] == expected
    assert pool.used_blocks == 0
    assert pool.check_integrity() == []
    pool.close()
