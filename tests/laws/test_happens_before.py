"""Whatever order a device may run things in, bytes are those of the plain order; and no event could be left out."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.synthetic import BLOCK_SIZE
from tests.gpu.fakes import FakeDevice
from tests.gpu.rigs import Rig
from tests.laws.shelves import GEOMETRY

SEEDS = range(30)
Scene = Callable[[Rig, ExitStack], Iterator["Check"]]


def plain_program(device: FakeDevice, *, ordered: bool) -> bytes:
    """Two streams that hand bytes to each other and back."""
    there, here, other = device.empty(4), device.pinned(4), device.stream()
    device.host(here.numpy().data, writes=True)
    here.numpy().data[:] = b"good"
    device.copy([(there, here)], other)
    if ordered:
        device.compute.wait(other.record())
    seen = device.read(there)
    if ordered:
        other.wait(device.compute.record())
    device.copy([(there, there.clone())], other)
    device.drain()
    return seen[0]


def test_the_fake_device_finds_what_is_not_ordered() -> None:
    outcomes = {plain_program(FakeDevice(Random(seed)), ordered=False) for seed in SEEDS}
    assert b"good" in outcomes
    assert len(outcomes) > 1
    for seed in SEEDS:
        device = FakeDevice(Random(seed))
        plain_program(device, ordered=False)
        assert len(device.violations) == 2
        device = FakeDevice(Random(seed))
        assert plain_program(device, ordered=True) == b"good"
        assert device.violations == []


def test_the_fake_device_finds_a_host_that_does_not_wait() -> None:
    def program(device: FakeDevice, *, waits: bool) -> bytes:
        there, here, other = device.empty(4), device.pinned(4), device.stream()
        for text in (b"good", b"late"):
            device.host(here.numpy().data, writes=True)
            here.numpy().data[:] = text
            if text == b"good":
                device.copy([(there, here)], other)
                event = other.record()
                if waits:
                    event.synchronize()
        device.compute.wait(event)
        seen = device.read(there)
        device.drain()
        return seen[0]

    for waits, outcomes in ((True, {b"good"}), (False, {b"good", b"late"})):
        devices = [FakeDevice(Random(seed)) for seed in SEEDS]
        assert {program(device, waits=waits) for device in devices} == outcomes
        assert all((device.violations == []) is waits for device in devices)


Check = tuple[list[bytes], bytes]
"""What was, or will be, seen, and what is to be seen."""


def layers(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    """Kernels of a layer run while the next layers arrive, by way of slots that take turns."""
    rows = [rig.take(stack) for _ in range(3)]
    loading = stack.enter_context(rig.moves.load(rig.store, rig.leaves[:3], rows))
    for layer in range(4):
        loading.take(layer)
        for block, row in enumerate(rows):
            yield rig.device.read(rig.pool.leaf(row, layer // 2)), rig.group(block, layer // 2)
    assert loading.finish() == len(rows)


def at_once(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    rows = [rig.take(stack) for _ in range(2)]
    loading = stack.enter_context(rig.moves.load(rig.store, rig.leaves[3:5], rows))
    assert loading.finish() == len(rows)
    yield from ((rig.look(row), rig.bytes[block]) for block, row in enumerate(rows, 3))


def up_behind_a_kernel(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    row = rig.take(stack)
    text = rig.fill(row, 1)
    yield rig.look(row), text
    rig.again(row, stack)
    with rig.moves.load(rig.store, rig.leaves[:1], [row]) as loading:
        loading.finish()
    yield rig.look(row), rig.bytes[0]


def down_behind_a_kernel(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    row = rig.take(stack)
    text = rig.fill(row, 2)
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    yield [rig.host_bytes(saved)], text


def came_up(rig: Rig, stack: ExitStack) -> int:
    """Take a row into which the copies of a block are queued."""
    row = rig.take(stack)
    with rig.moves.load(rig.store, rig.leaves[:1], [row]) as loading:
        pass
    if loading.error:
        raise loading.error
    return row


def up_and_down(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    row = came_up(rig, stack)
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    yield [rig.host_bytes(saved)], rig.bytes[0]


def down_and_written(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    """The row is a kernel's again before its bytes are below."""
    row = rig.take(stack)
    text = rig.fill(row, 3)
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    rig.again(row, stack)
    rig.fill(row, 4)
    yield [rig.host_bytes(saved)], text


def down_and_up(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    """Into a row that a kernel has just read, layer by layer."""
    row, other = rig.take(stack), rig.take(stack)
    text = rig.fill(row, 5)
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    read = rig.fill(other, 6)
    yield rig.look(other), read
    rig.again(other, stack)
    restored = rig.moves.restore([(saved, other)])
    saved.close()
    restored.take(0)
    yield rig.device.read(rig.pool.leaf(other, 0)), text[: len(text) // 2]
    restored.finish()
    yield rig.look(other), text


def slot_again(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    """The place below is taken again before what was there is up."""
    row, other = rig.take(stack), rig.take(stack)
    texts = rig.fill(row, 7), rig.fill(other, 8)
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    third = rig.take(stack)
    restored = rig.moves.restore([(saved, third)])
    saved.close()
    saved = rig.moves.save(other)
    stack.callback(saved.close)
    yield [rig.host_bytes(saved)], texts[1]
    restored.finish()
    yield rig.look(third), texts[0]


def read_behind_a_kernel(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    row = rig.take(stack)
    text = rig.fill(row, 9)
    yield [rig.read(row)], text


def read_behind_a_copy(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    row = came_up(rig, stack)
    yield [rig.read(row)], rig.bytes[0]


def tail_over_a_kernel(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    """A tail is put where a kernel still reads."""
    row = rig.take(stack)
    text, tail = rig.fill(row, 10), rig.bytes[1]
    yield rig.look(row), text
    rig.pool.fill_tail(row, BLOCK_SIZE, [tail[start:end] for start, end in GEOMETRY.leaf_spans])
    rig.tables.set(0, [row])
    yield rig.look(row), tail


def tail_over_a_copy(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    row = rig.take(stack)
    text, tail = rig.fill(row, 11), rig.bytes[1]
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    rig.pool.fill_tail(row, BLOCK_SIZE, [tail[start:end] for start, end in GEOMETRY.leaf_spans])
    yield [rig.host_bytes(saved)], text


def cut_behind_a_copy(rig: Rig, stack: ExitStack) -> Iterator[Check]:
    """A row is copied that is on its way up, to one that is on its way down."""
    row, other = rig.take(stack), rig.take(stack)
    text = rig.fill(row, 12)
    saved = rig.moves.save(row)
    stack.callback(saved.close)
    rig.again(row, stack)
    with rig.moves.load(rig.store, rig.leaves[2:3], [other]) as loading:
        pass
    if loading.error:
        raise loading.error
    rig.pool.copy_cut(other, row, BLOCK_SIZE)
    yield rig.look(row), rig.bytes[2]
    yield [rig.host_bytes(saved)], text


SCENES = (
    layers, at_once, up_behind_a_kernel, down_behind_a_kernel, up_and_down, down_and_written, down_and_up, slot_again,
    read_behind_a_kernel, read_behind_a_copy, tail_over_a_kernel, tail_over_a_copy, cut_behind_a_copy,
)  # fmt: skip
SITES = {
    "loading._wait < loading.take",
    "loading._wait < loading.finish",
    "moves._lower < moves.save",
    "devicerows.order < moves._copy < moves._lower < moves.save",
    "staging.order < moves._copy < moves._lower < moves.save",
    "devicerows.order < moves._copy < moves.restore",
    "staging.order < moves._copy < moves.restore",
    "devicerows.order < moves._copy < moves._bring_group < moves._bring < moves.load",
    "devicerows.settle < devicepool.set",
    "devicerows.settle < devicepool.copy_cut",
    "moves._lower < moves.read < devicepool.read",
    "devicerows.order < moves._copy < moves._lower < moves.read < devicepool.read",
    "moves.read < devicepool.read",
    "moves.write < devicepool.fill_tail",
    "devicerows.order < moves._copy < moves.write < devicepool.fill_tail",
    "staging.settle < staging.turn < moves._bring_group < moves._bring < moves.load",
    "staging.settle < staging.leaves",
}
"""All that anything waits for."""


def play(rig: Rig, scenes: Iterable[Scene]) -> bool:
    """Do moves, and say whether all bytes were right."""
    checks: list[Check] = []
    for scene in scenes:
        with ExitStack() as stack:
            checks += scene(rig, stack)
    rig.device.drain()
    return all(seen == [expected] for seen, expected in checks)


def make_rig(seed: int | Random = 0, slots: int = 2) -> Rig:
    return Rig(seed=seed, slots=slots, host_blocks=1)


def test_each_move_gives_the_bytes_of_the_plain_order() -> None:
    for seed in SEEDS:
        rig = make_rig(seed)
        assert play(rig, SCENES)
        assert rig.is_clean()


def test_no_wait_could_be_left_out() -> None:
    """The control: without what any place waits for, nothing orders two uses, and bytes come out wrong."""
    needed, wrong = set[str](), set[str]()
    for scene, slots in product(SCENES, (2, 8)):
        rig = make_rig(slots=slots)
        play(rig, [scene])
        assert set(rig.device.waits) <= SITES
        for number, site in enumerate(rig.device.waits, 1):
            for seed in SEEDS:
                if site in needed and site in wrong:
                    break
                rig = make_rig(seed, slots)
                rig.device.lost_wait = number
                if not play(rig, [scene]):
                    wrong.add(site)
                if rig.device.violations:
                    needed.add(site)
    assert (needed, wrong) == (SITES, SITES)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("scene", SCENES)
def test_stopped_at_any_step_nothing_stays_behind(scene: Scene, kind: type[BaseException]) -> None:
    rig = make_rig()
    play(rig, [scene])
    first, last = make_rig().device.calls + 1, rig.device.calls
    assert last > first
    for step in range(first, last + 1):
        rig = make_rig(step)
        rig.device.fails_at, rig.device.failure = step, kind("stopped")
        with pytest.raises(kind, match="stopped"):
            play(rig, [scene])
        assert rig.is_clean(), step
        assert play(rig, [scene, layers]), step
        assert rig.is_clean(), step


@given(draw=st.randoms(use_true_random=False), scenes=st.lists(st.sampled_from(SCENES), max_size=5))
@settings(max_examples=40, deadline=None)
def test_any_order_of_the_device_will_do(draw: Random, scenes: list[Scene]) -> None:
    rig = make_rig(draw)
    assert play(rig, scenes)
    assert rig.is_clean()
