"""A device that is the host, for dry runs: what is queued has happened before the call returns."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from cyberkv.runtime.cuda.device import ENTRY_DTYPE, Device, Event, Graph, Stream, TorchDevice

from .gpu import Bench

FREE_BYTES = 1 << 30


class Done:
    """A stream or an event of it: everything has happened."""

    def record(self) -> Event:
        return self

    def wait(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


class HostDevice:
    """See `Device`."""

    compute: Stream = Done()

    def stream(self) -> Stream:
        return Done()

    def empty(self, size_bytes: int) -> Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    pinned = empty

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], stream: Stream) -> None:  # noqa: ARG002
        for target, source in pairs:
            target.copy_(source)

    def upload(self, target: Tensor, entries: Sequence[int], stream: Stream) -> None:  # noqa: ARG002
        target.copy_(torch.tensor(entries, dtype=ENTRY_DTYPE))

    def put(self, tensor: Tensor) -> Tensor:
        return tensor

    def capture(self, run: Callable[[], object]) -> Graph:  # noqa: ARG002
        raise RuntimeError("a host captures nothing")

    def free_bytes(self) -> int:
        return FREE_BYTES


def device_of(bench: Bench) -> Device:
    """Give the device of a run."""
    return HostDevice() if bench.dry else TorchDevice()
