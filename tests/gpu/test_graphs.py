"""Captured steps on the fake device: what each launch computes, in which order, and when it is captured anew."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cyberkv.runtime.cuda.device import ENTRY_DTYPE
from cyberkv.runtime.cuda.graphs import Graphs
from tests.gpu.fakes import FakeDevice, FakeGraph

FORMS = ("one", "two", "three")


class Doubling:
    """A forward on the fake device: twice the numbers, plus what a table holds."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.table = self.tables(7)
        self.told: list[int] = []

    def tables(self, value: int) -> Tensor:
        made = self.device.empty(4).view(ENTRY_DTYPE)
        self.device.upload(made, [value], self.device.compute)
        return made

    def forward(self, numbers: Tensor) -> Tensor:
        out, table = self.device.empty(numbers.nbytes).view(ENTRY_DTYPE), self.table
        self.device.kernel(
            lambda: out.copy_(2 * numbers + table), reads=[numbers, table], writes=[out]
        )  # fmt: skip
        return out

    def stale(self, numbers: Tensor) -> Tensor:
        """Wrong: what the host knew when it was captured."""
        out, known = self.device.empty(numbers.nbytes).view(ENTRY_DTYPE), torch.tensor(self.told, dtype=ENTRY_DTYPE)
        self.device.kernel(lambda: out.copy_(2 * known + 7), writes=[out])
        return out

    def results(
        self, graphs: Graphs, steps: list[tuple[str, list[int]]], forward: Callable[[Tensor], Tensor]
    ) -> list[list[int]]:
        seen = []
        for form, self.told in steps:
            seen.append(self.device.read(graphs.run(form, (self.table,), self.told, forward)))
        self.device.drain()
        return [torch.frombuffer(bytearray(each[0]), dtype=ENTRY_DTYPE).tolist() for each in seen]


def expected(steps: list[tuple[str, list[int]]], table: int = 7) -> list[list[int]]:
    return [[2 * number + table for number in numbers] for _, numbers in steps]


STEPS = st.lists(st.tuples(st.sampled_from(FORMS), st.integers(-9, 9)), max_size=12)


@settings(max_examples=15)
@given(steps=STEPS, most=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_launch_computes_its_own_numbers(steps: list[tuple[str, int]], most: int, seed: int) -> None:
    """Whatever forms come in which order, and however few are kept."""
    device = FakeDevice(Random(seed))
    work, graphs = Doubling(device), Graphs(device, most)
    numbered = [(form, [number, -number, 1][: 1 + FORMS.index(form)]) for form, number in steps]
    assert work.results(graphs, numbered, work.forward) == expected(numbered)
    assert not device.violations


def test_a_form_is_captured_at_its_second_time_and_launched_again_after() -> None:
    device = FakeDevice(Random(0))
    work, graphs = Doubling(device), Graphs(device)
    steps = [("one", [number]) for number in range(5)]
    work.results(graphs, steps, work.forward)
    assert (graphs.captured, graphs.replayed) == (1, 4)


def test_what_the_host_knew_is_not_read_again() -> None:
    """The control: with numbers that were captured, all later steps give those of the second."""
    device = FakeDevice(Random(0))
    work, graphs = Doubling(device), Graphs(device)
    steps = [("one", [number]) for number in range(4)]
    assert work.results(graphs, steps, work.stale) == [[7], [9], [9], [9]] != expected(steps)


def test_over_another_table_it_is_captured_anew() -> None:
    device = FakeDevice(Random(0))
    work, graphs = Doubling(device), Graphs(device)
    steps = [("one", [number]) for number in range(3)]
    assert work.results(graphs, steps, work.forward) == expected(steps)
    work.table = work.tables(100)
    assert work.results(graphs, steps, work.forward) == expected(steps, 100)
    assert graphs.captured == 2


def test_numbers_written_on_another_stream_are_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control for the order: written anywhere else, they race with the launch before, or with this one."""
    device = FakeDevice(Random(0))
    work, graphs, beside = Doubling(device), Graphs(device), device.stream()
    upload = device.upload
    monkeypatch.setattr(device, "upload", lambda target, entries, _stream: upload(target, entries, beside))
    work.results(graphs, [("one", [number]) for number in range(4)], work.forward)
    assert device.violations


def test_what_cannot_be_captured_is_computed_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(Random(0))
    work, graphs = Doubling(device), Graphs(device)

    def refuse(_run: Callable[[], object]) -> None:
        raise RuntimeError("not while it is captured")

    monkeypatch.setattr(device, "capture", refuse)
    steps = [("one", [number]) for number in range(4)]
    assert work.results(graphs, steps, work.forward) == expected(steps)
    assert graphs.captured == graphs.replayed == 0


@pytest.mark.parametrize(("at", "lost"), [(1, [0]), (2, []), (3, [1]), (4, [2])])
def test_an_error_drops_what_was_captured(at: int, lost: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first launch it is raised, in a capture there is the way without, in a replay it is raised again."""
    device = FakeDevice(Random(0))
    work, graphs = Doubling(device), Graphs(device)
    kernel, launches, failed = device.kernel, iter(range(1, 99)), []

    def failing(*args: Any, **more: Any) -> None:
        if next(launches) == at:
            raise MemoryError("gone")
        kernel(*args, **more)

    def forward(numbers: Tensor) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(device, "kernel", failing)
            return work.forward(numbers)

    replay = FakeGraph.replay

    def replayed(graph: FakeGraph) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(device, "kernel", failing)
            replay(graph)

    monkeypatch.setattr(FakeGraph, "replay", replayed)
    steps = [("one", [number]) for number in range(6)]
    for number, step in enumerate(steps):
        try:
            assert work.results(graphs, [step], forward) == expected([step])
        except MemoryError:
            failed.append(number)
    assert failed == lost
