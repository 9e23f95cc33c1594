"""Laws of planes: whatever is appended, in whatever pieces, the last rows come back in logical order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from cyberkv.cybergraph.errors import CacheDiscontinuity
from cyberkv.runtime.attention.panels import flash
from cyberkv.runtime.rings.plane import Layout, Plane
from cyberkv.runtime.rings.ring import Position, Ring, Slot

KV_HEADS, HEAD_DIM = 2, 4
layouts = st.sampled_from(Layout)


def poisoned(capacity: int, layout: Layout = Layout.HEAD_MAJOR, dtype: torch.dtype = torch.float32) -> Plane:
    """A plane whose memory is all NaN: whatever reads a row that nobody wrote is seen."""
    plane = Plane.zeroed(capacity, KV_HEADS, HEAD_DIM, dtype, layout)
    plane.key.fill_(float("nan"))
    plane.value.fill_(float("nan"))
    return plane


def rows_at(start: int, count: int) -> tuple[Tensor, Tensor]:
    """Rows that are different at every position, head and dimension."""
    positions = torch.arange(start, start + count, dtype=torch.float32)[None, :, None] * 1000
    k = positions + torch.arange(KV_HEADS)[:, None, None] * 100 + torch.arange(HEAD_DIM)
    return k, -k - 1


class PlaneMachine(RuleBasedStateMachine):
    """A plane against a plain list of all rows that were ever appended."""

    @initialize(capacity=st.integers(1, 7), layout=layouts, start=st.integers(0, 9))
    def begin(self, capacity: int, layout: Layout, start: int) -> None:
        self.plane = poisoned(capacity, layout)
        self.plane = self.plane.on(Ring.starting_at(capacity, Position(start)))
        self.first, self.end = start, start

    @rule()
    def one(self) -> None:
        k, v = rows_at(self.end, 1)
        self.plane = self.plane.append(Position(self.end), k[:, 0], v[:, 0], layer=0)
        self.end += 1

    @rule(count=st.integers(0, 16))
    def several(self, count: int) -> None:
        k, v = rows_at(self.end, count)
        self.plane = self.plane.append_batch(Position(self.end), k, v, layer=0)
        self.end += count

    @rule(back=st.integers(0, 3))
    def again(self, back: int) -> None:
        self.end = max(self.plane.origin_logical, self.end - back)
        self.plane = self.plane.on(self.plane.ring.upto(Position(self.end)))

    @rule(step=st.sampled_from([-2, -1, 1, 2, 50]))
    def out_of_step(self, step: int) -> None:
        before = self.plane
        with pytest.raises(CacheDiscontinuity):
            self.plane.append_batch(Position(self.end + step), *rows_at(self.end + step, 2), layer=0)
        assert self.plane is before

    @invariant()
    def what_is_held_is_what_was_appended(self) -> None:
        if not hasattr(self, "plane"):
            return
        ring = self.plane.ring
        assert ring.end == self.end
        assert 0 <= ring.len <= ring.capacity
        assert 0 <= ring.origin_physical < ring.capacity
        keys, values = self.plane.gather(ring.origin_logical, ring.end)
        k, v = rows_at(ring.origin_logical, ring.len)
        assert torch.equal(keys, k)
        assert torch.equal(values, v)


TestPlane = PlaneMachine.TestCase


@given(capacity=st.integers(1, 9), layout=layouts, cuts=st.lists(st.integers(0, 20), max_size=6))
def test_a_batch_is_its_rows_one_by_one(capacity: int, layout: Layout, cuts: list[int]) -> None:
    batched, single, at = poisoned(capacity, layout), poisoned(capacity, layout), 0
    for count in cuts:
        k, v = rows_at(at, count)
        batched = batched.append_batch(Position(at), k, v, layer=0)
        for i in range(count):
            single = single.append(Position(at + i), k[:, i], v[:, i], layer=0)
        at += count
        assert batched.ring == single.ring
        assert torch.equal(batched.key.nan_to_num(7), single.key.nan_to_num(7))
        assert torch.equal(batched.value.nan_to_num(7), single.value.nan_to_num(7))


@given(capacity=st.integers(1, 9), start=st.integers(0, 30), count=st.integers(0, 9), layout=layouts)
def test_stores_go_where_a_loop_puts_them(capacity: int, start: int, count: int, layout: Layout) -> None:
    """The store kernel, element by element: the slot follows from the origins, never from the position alone."""
    ring = Ring.starting_at(capacity, Position(start))
    plane = poisoned(capacity, layout).on(ring)
    k, v = rows_at(start, count)
    after = plane.append_batch(Position(start), k, v, layer=0)
    for i in range(max(0, count - capacity), count):
        slot = (ring.origin_physical + start + i - ring.origin_logical) % capacity
        for head in range(KV_HEADS):
            place = (slot, head) if layout is Layout.TOKEN_MAJOR else (head, slot)
            assert after.key[place].tolist() == k[head, i].tolist()


@given(length=st.integers(1, 40), more=st.integers(0, 40), window=st.integers(1, 8))
def test_a_large_plane_is_a_list_that_grows(length: int, more: int, window: int) -> None:
    full, ring = poisoned(80), poisoned(window)
    for start, count in ((0, length), (length, more)):
        full = full.append_batch(Position(start), *rows_at(start, count), layer=0)
        ring = ring.append_batch(Position(start), *rows_at(start, count), layer=0)
    assert (full.origin_logical, full.origin_physical, full.len) == (0, 0, length + more)
    held = ring.origin_logical, ring.ring.end
    assert all(torch.equal(a, b) for a, b in zip(full.gather(*held), ring.gather(*held), strict=True))


@settings(max_examples=20)
@given(shift=st.integers(1, 2047), seed=st.integers(0, 1 << 20))
def test_a_gather_does_not_depend_on_the_rotation(shift: int, seed: int) -> None:
    """2,048 rows from another slot on: read in logical order, attention gives the same bytes."""
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, KV_HEADS, 2048, 64, generator=generator)
    q = torch.randn(KV_HEADS, 16, 64, generator=generator)
    outs = []
    for slot in (0, shift):
        plane = Plane.zeroed(2048, KV_HEADS, 64, torch.float32).on(Ring(2048, 0, Position(500), Slot(slot)))
        plane = plane.append_batch(Position(500), k, v, layer=0)
        outs.append(flash(q, *plane.gather(Position(500), Position(2548)), None, 0.125)[0])
    assert (outs[0] - outs[1]).abs().max() == 0


def test_control_summing_in_the_order_of_slots_gives_other_bytes() -> None:
    generator = torch.Generator().manual_seed(3)
    k, v = torch.randn(2, KV_HEADS, 2048, 64, generator=generator)
    q = torch.randn(KV_HEADS, 16, 64, generator=generator)
    expected, _ = flash(q, k, v, None, 0.125)
    turned, _ = flash(q, k.roll(700, 1), v.roll(700, 1), None, 0.125)
    difference = (expected - turned).abs().max()
    assert 0 < difference < 1e-5


def test_a_copy_is_out_of_reach_of_later_rows() -> None:
    """Attend, then overwrite: a view of the slots would see the new rows."""
    plane = poisoned(4).append_batch(Position(0), *rows_at(0, 4), layer=0)
    copied, viewed = plane.gather(Position(0), Position(4))[0], plane.by_head[0]
    plane.append_batch(Position(4), *rows_at(4, 3), layer=0)
    assert torch.equal(copied, rows_at(0, 4)[0])
    assert not torch.equal(viewed, rows_at(0, 4)[0])
