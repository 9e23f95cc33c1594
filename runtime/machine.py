"""What this machine offers to the models: instruction set, threads and whether they pay, accelerators."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

_ROWS, _WIDTH = 512, 576
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts that decide speed and the bytes of a numeric domain."""

    cpu_capability: str
    """Instruction set that torch chose, such as `AVX512`."""
    threads: int
    """Threads that torch would use."""
    thread_gain: float | None
    """How many times faster a matrix product is on all threads than on one, now; None with one thread."""
    accelerators: tuple[str, ...]
    """Devices torch sees beside the CPU."""


def look_around(clock_s: Callable[[], float]) -> Machine:
    """Examine the machine. Effects: computes for some milliseconds; sets the thread count and puts it back."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if not devices and torch.accelerator.is_available():
        devices = [str(torch.accelerator.current_accelerator())]
    threads = torch.get_num_threads()
    return Machine(torch.backends.cpu.get_cpu_capability(), threads, _thread_gain(threads, clock_s), tuple(devices))


def _thread_gain(threads: int, clock_s: Callable[[], float]) -> float | None:
    if threads == 1:
        return None
    rows, weights = torch.ones(_ROWS, _WIDTH), torch.ones(_WIDTH, _WIDTH)

    def best_s(count: int) -> float:
        torch.set_num_threads(count)
        times_s = []
        for _ in range(_ROUNDS):
            started_s = clock_s()
            rows @ weights
            times_s.append(clock_s() - started_s)
        return min(times_s)

    try:
        one_s, all_s = best_s(1), best_s(threads)
    finally:
        torch.set_num_threads(threads)
    return one_s / all_s
