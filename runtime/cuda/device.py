"""What the moves need of a device: memory, streams that run operations in order, and events that order streams.

An operation is queued on a stream and happens later. Two that touch the same bytes, on two streams or one on the host,
are ordered by an event that one records and the other waits for, or not at all. A stream waits without the host; the
host waits only for what it is about to touch itself.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, cast

import torch
from torch import Tensor

from ...cybergraph.errors import TierFull
from .joined import joined

ENTRY_DTYPE: Final = torch.int32
"""Type of the entries of block tables."""


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Have the host wait until everything before the point is done."""


class Stream(Protocol):
    """A queue of operations, done in order."""

    def record(self) -> Event:
        """Mark the point after what is queued now."""

    def wait(self, event: Event) -> None:
        """Have what is queued from now on happen after an event. The host goes on at once."""

    def synchronize(self) -> None:
        """Have the host wait for all that is queued. For ways out after an error only."""


class Graph(Protocol):
    """Operations that were captured."""

    def replay(self) -> None:
        """Queue them all once more on the stream for kernels: over the same memory, with what it holds by then."""


class Device(Protocol):
    """A device. Every method may be called from any thread."""

    @property
    def compute(self) -> Stream:
        """The stream that kernels are launched on."""

    def stream(self) -> Stream:
        """Make another stream, for copies."""

    def empty(self, size_bytes: int) -> Tensor:
        """Give memory of the device, of any content: uint8 [size_bytes]. Raises `TierFull`.

        Once it is dropped, what is queued on another stream than the one for kernels must be done.
        """

    def pinned(self, size_bytes: int) -> Tensor:
        """Give page-locked host memory, which copies need to be asynchronous: uint8 [size_bytes]. Raises `TierFull`.

        Once it is dropped, nobody else is given it before the copies that are queued with it are done.
        """

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], stream: Stream) -> None:
        """Queue copies of contiguous bytes, from pinned to device memory, back, or within it. Pairs: target, source.

        Raises `TierFull`.
        """

    def upload(self, target: Tensor, entries: Sequence[int], stream: Stream) -> None:
        """Queue a copy of integers, which are taken over before this returns. Shape: target int32 [len(entries)]."""

    def put(self, tensor: Tensor) -> Tensor:
        """Give a copy of a tensor of the host, or the tensor where the device sees it. Raises `TierFull`."""

    def capture(self, run: Callable[[], object]) -> Graph:
        """Note what `run` queues on the stream for kernels, and do not queue it. Nothing was compiled for it only now.

        What `run` has made by then stays for the graph, and is overwritten by each replay and by other graphs of the
        device. Raises as `run`, and where something cannot be captured.
        """

    def free_bytes(self) -> int:
        """Give the memory of the device that nobody has taken."""


class TorchStream:
    """A CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.raw = stream

    def record(self) -> Event:
        """See `Stream`. Whoever waits on the host sleeps instead of spinning."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.raw)
        return cast("Event", event)

    def wait(self, event: Event) -> None:
        """See `Stream`."""
        self.raw.wait_event(cast("torch.cuda.Event", event))

    def synchronize(self) -> None:
        """See `Stream`."""
        self.raw.synchronize()


class TorchGraph:
    """A CUDA graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        self._graph, self._stream = graph, stream

    def replay(self) -> None:
        """See `Graph`."""
        with torch.cuda.stream(self._stream):
            self._graph.replay()


class TorchDevice:
    """A CUDA device as PyTorch gives it."""

    def __init__(self, index: int = 0) -> None:
        """Take the stream that is current for the calling thread as the one for kernels."""
        self.place = torch.device("cuda", index)
        self._compute = TorchStream(torch.cuda.current_stream(self.place))
        self._graph_memory = torch.cuda.graph_pool_handle()

    @property
    def compute(self) -> Stream:
        """See `Device`."""
        return self._compute

    def stream(self) -> Stream:
        """See `Device`."""
        return TorchStream(torch.cuda.Stream(self.place))  # type: ignore[no-untyped-call]

    def empty(self, size_bytes: int) -> Tensor:
        """See `Device`."""
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self.place)
        except torch.OutOfMemoryError as error:
            raise out_of_memory("the device", size_bytes) from error

    def pinned(self, size_bytes: int) -> Tensor:
        """See `Device`."""
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        except (RuntimeError, MemoryError) as error:
            self._compute.raw.query()  # raises where the device has failed, which its allocator is the first to meet
            raise no_pinned(size_bytes) from error

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], stream: Stream) -> None:
        """See `Device`."""
        with torch.cuda.stream(cast("TorchStream", stream).raw):
            for target, source in joined(pairs):
                try:
                    target.copy_(source, non_blocking=True)
                except torch.OutOfMemoryError as error:
                    raise out_of_memory("the device", target.nbytes) from error

    def upload(self, target: Tensor, entries: Sequence[int], stream: Stream) -> None:
        """See `Device`. The allocator of pinned memory gives the source to nobody else before the copy is done."""
        source = self.pinned(len(entries) * ENTRY_DTYPE.itemsize).view(ENTRY_DTYPE)
        source.copy_(torch.tensor(entries, dtype=ENTRY_DTYPE))
        with torch.cuda.stream(cast("TorchStream", stream).raw):
            target.copy_(source, non_blocking=True)

    def put(self, tensor: Tensor) -> Tensor:
        """See `Device`."""
        try:
            return tensor.to(self.place)
        except torch.OutOfMemoryError as error:
            raise out_of_memory("the device", tensor.nbytes) from error

    def capture(self, run: Callable[[], object]) -> Graph:
        """See `Device`. Other threads may go on: what they ask the driver for does not end the capture."""
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.stream(self._compute.raw),  # a capture that cannot begin would leave its own stream current
                torch.cuda.graph(graph, pool=self._graph_memory, capture_error_mode="thread_local"),
            ):
                run()
        except BaseException:
            self._graph_memory = torch.cuda.graph_pool_handle()  # the other one may count as captured to for ever
            raise
        return TorchGraph(graph, self._compute.raw)

    def free_bytes(self) -> int:
        """See `Device`."""
        return int(torch.cuda.mem_get_info(self.place)[0])


def out_of_memory(where: str, size_bytes: int) -> TierFull:
    """Build the error for memory that is not to be had."""
    return TierFull(
        f"no room for {size_bytes} bytes in {where}",
        hint="give the device pool fewer bytes, or close what else uses the device",
        size_bytes=size_bytes,
    )


def no_pinned(size_bytes: int) -> TierFull:
    """Build the error for page-locked host memory that the system does not give."""
    return TierFull(
        f"the system gives no {size_bytes} bytes of page-locked host memory",
        hint="raise its limit for this process, or that of the container; `serve --host-memory` asks for less",
        size_bytes=size_bytes,
    )
