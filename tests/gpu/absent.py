"""A device that is not here: whatever is launched is compiled for it, as on a machine that has it, and run by nobody.

    python tests/gpu/absent.py      says how many programs of each kernel of attention there are after many steps

Kernels must not be interpreted in this process.
"""

from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

MOST_SHARED_BYTES = 227 << 10
GRID = (2**31 - 1, 65535, 65535)


class AbsentDriver(DriverBase):
    """See triton's."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.launched: list[tuple[str, tuple[int, int, int]]] = []
        """Kernel and grid of each launch."""
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (1, 1, 0, 0, 1024),  # module, function, registers, spills, threads
            get_device_properties=lambda _: {"max_shared_mem": MOST_SHARED_BYTES},
            unload_module=lambda _: None,
        )

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def launcher_cls(self, source: Any, _metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, *_: Any) -> None:
            assert all(1 <= size <= most for size, most in zip((x, y, z), GRID, strict=True)), (x, y, z)
            self.launched.append((source.fn.__name__, (x, y, z)))

        return launch


def use(capability: int) -> AbsentDriver:
    """Have kernels compiled for a device of this capability."""
    from cyberkv.runtime.cuda.kernels import checks, launch, rowwise

    for module in (checks, launch, rowwise):
        module.capability_of = lambda _: capability
    made = AbsentDriver(capability)
    driver.set_active(made)
    return made


def main() -> None:
    use(90)
    from cyberkv.runtime.cuda.cache import Form, Numbers, PagedCache, Part, numbers_of
    from cyberkv.runtime.cuda.kernels import launch
    from cyberkv.runtime.cuda.support import Attention

    attention = Attention(4, 2, 64, 16, "bf16", 0.125, 64)
    pages, turns = torch.zeros(8, 1, 2, 16, 2, 64, dtype=torch.bfloat16), torch.zeros(2, 4096, 32)
    every = [(1,), (2,), (5,), (16,), (1, 1, 1), (3, 1, 1), (33, 2, 2, 7), (1,) * 16]
    for rows, width, provisional in product(every, (16, 17, 64), (False, True)):
        if provisional and set(rows) != {1}:
            continue
        parts = [Part([0] * width, 0, (1,) * count) for count in rows]
        numbers = Numbers(torch.tensor(numbers_of(parts), dtype=torch.int32), rows=sum(rows), parts=len(rows))
        tables = torch.zeros(len(rows), width, dtype=torch.int32)
        form = Form(rows, width, provisional)
        cache = PagedCache(launch, pages, [attention], tuple(turns), form, numbers, tables)
        qkv = torch.zeros(sum(rows), 8, 64, dtype=torch.bfloat16)
        cache.attend(0, 0, qkv[:, :6], qkv[:, 6:], sum(rows))
    for name in ("decode_panels", "merge_panels", "prefill_tiles", "append_slots"):
        print(name, len(getattr(launch, name).device_caches[0][0]))


if __name__ == "__main__":
    main()
