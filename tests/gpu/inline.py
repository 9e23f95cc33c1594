"""A device that is the host: its memory is host memory, and what is queued has happened before the call returns.

What is captured is written down operation by operation, as a device does: the tensors, and not what the host knew. A
launch of a kernel is one operation, and so is a replay.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cyberkv.runtime.cuda.device import ENTRY_DTYPE, no_pinned, out_of_memory
from tests.gpu.placed import OnDevice, placed, plain


class Now:
    """A stream or an event: everything has happened."""

    def record(self) -> "Now":
        return self

    def wait(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Tape(TorchDispatchMode):
    """Writes operations down. Their results are made once, and written again by each replay; until then they are NaN.

    An operation that writes to memory that was there before is done while it is written down, and by each replay again.
    """

    def __init__(self, launched: Callable[[], None]) -> None:
        super().__init__()
        self._launched = launched
        self.steps: list[tuple[Callable[[], Any], Any]] = []
        self._made: list[Tensor] = []

    def note(self, run: Callable[[], Any], given: Any) -> Any:
        result = run()
        self.steps.append((run, result))
        there = {each.untyped_storage().data_ptr() for each in tree_leaves(given) if isinstance(each, Tensor)}
        made = (each for each in tree_leaves(result) if isinstance(each, Tensor) and each.is_floating_point())
        self._made += [each for each in made if each.untyped_storage().data_ptr() not in there]
        return result

    def spoil(self) -> None:
        for each in self._made:
            each.fill_(float("nan"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("the host looked at what is computed while it was captured")
        return self.note(lambda: func(*args, **kwargs), (args, kwargs))

    def replay(self) -> None:
        self._launched()
        with torch.no_grad():
            for run, known in self.steps:
                for old, new in zip(tree_leaves(known), tree_leaves(run()), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@dataclass
class InlineDevice:
    left_bytes: int = 1 << 30
    left_pinned_bytes: int = 1 << 40
    """More is refused at once, and none of it is counted as taken."""
    fails_at: int = 0
    """The launch, of a kernel or of what was captured, with this number raises `failure`."""
    failure: BaseException = field(default_factory=lambda: torch.OutOfMemoryError("no memory"))
    launches: int = 0
    tape: Tape | None = None
    compute: Now = field(default_factory=Now)

    def stream(self) -> Now:
        return Now()

    def empty(self, size_bytes: int) -> Tensor:
        if size_bytes > self.left_bytes:
            raise out_of_memory("the device", size_bytes)
        return placed(torch.full((size_bytes,), 0xFF, dtype=torch.uint8))  # NaN in every type

    def pinned(self, size_bytes: int) -> Tensor:
        if size_bytes > self.left_pinned_bytes:
            raise no_pinned(size_bytes)
        return torch.full((size_bytes,), 0xFF, dtype=torch.uint8)

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], stream: Any) -> None:
        for target, source in pairs:
            target.copy_(source)

    def upload(self, target: Tensor, entries: Sequence[int], stream: Any) -> None:
        assert self.tape is None
        target.copy_(torch.tensor(entries, dtype=ENTRY_DTYPE))

    def free_bytes(self) -> int:
        return self.left_bytes

    def put(self, tensor: Tensor) -> Tensor:
        if tensor.nbytes > self.left_bytes:
            raise out_of_memory("the device", tensor.nbytes)
        return placed(tensor)

    def capture(self, run: Callable[[], object]) -> Tape:
        self.tape = Tape(self.launched)
        try:
            with self.tape:
                run()
            self.tape.spoil()
            return self.tape
        finally:
            self.tape = None

    def launched(self) -> None:
        self.launches += 1
        if self.launches == self.fails_at:
            raise self.failure

    def launch(self, kernel: Callable[..., Any], *args: Any) -> Any:
        """Launch a kernel: one operation, whatever it does inside. It takes nothing of the host's memory."""
        self.launched()
        assert not any(isinstance(each, Tensor) and not isinstance(each, OnDevice) for each in args)
        given = [plain(each) for each in args]
        if self.tape is None:
            return placed(kernel(*given))
        tape = self.tape
        with torch._C._DisableTorchDispatch():
            return placed(tape.note(lambda: kernel(*given), given))


class Launches:
    """Kernels of a module, launched on an inline device."""

    def __init__(self, device: InlineDevice, kernels: Any) -> None:
        self.device, self.kernels = device, kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self.kernels, name)
        return lambda *args: self.device.launch(kernel, *args)
