"""Steps that are launched again as a whole: of small steps, launching kernel by kernel is the larger part.

What was captured reads and writes the memory that it was captured over. So each form of a step has integers of its own,
which are written before each launch, and what else may move is compared: over other page tables it is captured anew.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from .device import ENTRY_DTYPE, Device, Graph

MOST_GRAPHS: Final = 32
"""Forms of steps that are kept captured; the one that was used least lately goes first."""


@dataclass(slots=True)
class _Known:
    """One form that was computed at least once."""

    fixed: tuple[Tensor, ...]
    inputs: Tensor
    """Int32, read by what was captured."""
    graph: Graph | None = None
    output: Tensor | None = None
    """Written by what was captured."""
    refused: bool = False
    """It could not be captured."""


class Graphs:
    """What was captured on one device. For one thread."""

    def __init__(self, device: Device, most: int = MOST_GRAPHS) -> None:
        self._device, self._most = device, most
        self._known: dict[Hashable, _Known] = {}
        self.captured = self.replayed = 0
        """How often."""

    def run(
        self, form: Hashable, fixed: tuple[Tensor, ...], numbers: list[int], forward: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Do `forward` over the numbers, on the device: at first as it comes, then captured, then launched again.

        Shapes: forward takes them as int32 [len(numbers)], the same number for each form. `fixed` is other memory that
        it reads and that may be replaced. Returns what it gave; the next run may overwrite that.
        Raises what `forward` raises; after an error nothing is kept that was captured.
        """
        try:
            known = self._find(form, fixed, len(numbers))
            self._device.upload(known.inputs, numbers, self._device.compute)
            if known.refused or form not in self._known:  # new: kernels are compiled as they are launched
                self._known[form] = known
                return forward(known.inputs)
            if known.graph is None and not self._capture(known, forward):
                return forward(known.inputs)
            return self._replay(known)
        except BaseException:
            self.clear()
            raise

    def _find(self, form: Hashable, fixed: tuple[Tensor, ...], count: int) -> _Known:
        known = self._known.get(form)
        if known is not None and all(one is other for one, other in zip(known.fixed, fixed, strict=True)):
            self._known[form] = self._known.pop(form)  # the last one was used last
            return known
        self._known.pop(form, None)
        while len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        return _Known(fixed, self._device.empty(count * ENTRY_DTYPE.itemsize).view(ENTRY_DTYPE))

    def _capture(self, known: _Known, forward: Callable[[Tensor], Tensor]) -> bool:
        """Capture a form, and say whether that was possible: where it is not, there is the way without."""

        def run() -> None:
            known.output = forward(known.inputs)

        try:
            known.graph = self._device.capture(run)
        except Exception:
            known.refused, known.output = True, None
            return False
        self.captured += 1
        return True

    def _replay(self, known: _Known) -> Tensor:
        if known.graph is None or known.output is None:
            raise RuntimeError("nothing was captured")
        known.graph.replay()
        self.replayed += 1
        return known.output

    def clear(self) -> None:
        """Let go of everything."""
        self._known.clear()
