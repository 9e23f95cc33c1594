"""Rings by table: the arithmetic of slots and origins, the layouts, the gate of a snapshot."""

import ast
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch

from cyberkv.cybergraph.errors import CacheDiscontinuity, MalformedBytes
from cyberkv.runtime.models.config_layers import LayerKind
from cyberkv.runtime.rings import window
from cyberkv.runtime.rings.plane import Layout, Plane, head_major, token_major
from cyberkv.runtime.rings.ring import Position, Ring, Slot
from cyberkv.runtime.rings.snapshot import RULES, Shape, require_fit, restore, shape_of, take_snapshot

TOP = Path(__file__).parents[2]
KINDS = (LayerKind(window=4), LayerKind(window=None))


def P(position: int) -> Position:
    return Position(position)


def filled(capacity: int) -> Ring:
    ring = Ring(capacity)
    for position in range(capacity):
        ring, slot = ring.append(P(position), layer=0)
        assert (slot, ring.origin_logical, ring.origin_physical, ring.len) == (position, 0, 0, position + 1)
    return ring


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 2048])
def test_the_wrap_walk(capacity: int) -> None:
    ring = filled(capacity)
    for position in range(capacity, 3 * capacity + 1):
        ring, slot = ring.append(P(position), layer=0)
        assert slot == (position - capacity) % capacity
        assert ring.origin_logical == position + 1 - capacity
        assert ring.origin_physical == (position + 1 - capacity) % capacity
        assert (ring.len, ring.end) == (capacity, position + 1)


def test_the_first_wraps_of_a_window_of_2048() -> None:
    ring, walk = filled(2048), []
    for position in (2048, 2049):
        ring, slot = ring.append(P(position), layer=0)
        walk.append((position, slot, ring.origin_logical, ring.origin_physical))
    assert walk == [(2048, 0, 1, 1), (2049, 1, 2, 2)]


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5])
def test_every_small_table(capacity: int) -> None:
    """Against the last `capacity` positions of a list that is written slot by slot."""
    slots: list[int | None] = [None] * capacity
    ring = Ring(capacity)
    for position in range(4 * capacity):
        ring, slot = ring.append(P(position), layer=0)
        slots[slot] = position
        held = range(max(0, position + 1 - capacity), position + 1)
        assert [slots[ring.slot(P(each))] for each in held] == list(held)
        assert ring.holds(P(held.start), P(held.stop))
        assert not ring.holds(P(held.start), P(held.stop + 1))
        assert not held.start or not ring.holds(P(held.start - 1), P(held.stop))


@pytest.mark.parametrize(
    ("length", "rows", "overflow", "source", "origins"),
    [
        (1900, 512, 364, (0, 512), (364, 364)),  # past the end
        (0, 512, 0, (0, 512), (0, 0)),
        (2048, 512, 512, (0, 512), (512, 512)),
        (2048, 0, 0, (0, 0), (0, 0)),  # nothing comes
        (100, 2048, 100, (0, 2048), (100, 100)),  # exactly the capacity
        (100, 3000, 1052, (952, 2048), (1052, 1052)),  # the first of them are pushed out by the last
        (0, 5000, 2952, (2952, 2048), (2952, 904)),
    ],
)
def test_batches(length: int, rows: int, overflow: int, source: tuple[int, int], origins: tuple[int, int]) -> None:
    ring = Ring(2048)
    if length:
        ring = ring.append_batch(P(0), length, layer=0).ring
    batch = ring.append_batch(P(length), rows, layer=0)
    assert batch.overflow_rows == overflow
    assert (batch.source_first, batch.source_rows) == source
    assert (batch.ring.origin_logical, batch.ring.origin_physical) == origins
    assert sum(run.rows for run in batch.runs) == source[1]


@pytest.mark.parametrize("got", [-1, 0, 4, 6, 100])
def test_a_gap_a_replay_and_a_rewind_are_refused_and_change_nothing(got: int) -> None:
    plane = Plane.zeroed(3, 1, 4, torch.float32)
    for position in range(5):
        plane = plane.append(P(position), torch.full((1, 4), float(position)), torch.ones(1, 4), layer=7)
    before, ring = plane.key.clone(), plane.ring
    one, some = torch.full((1, 4), 9.0), torch.full((1, 2, 4), 9.0)
    for refused in (
        lambda: plane.append(P(got), one, one, layer=7),
        lambda: plane.append_batch(P(got), some, some, layer=7),
    ):
        with pytest.raises(CacheDiscontinuity) as caught:
            refused()
        assert caught.value.data == {"layer": 7, "expected": 5, "got": got}
    assert torch.equal(plane.key, before)
    assert plane.ring == ring
    assert plane.append(P(5), one, one, layer=7).ring != ring


def test_a_plane_that_is_large_enough_never_wraps() -> None:
    ring = Ring(64)
    for position in range(64):
        ring, slot = ring.append(P(position), layer=0)
        assert (slot, ring.origin_logical, ring.origin_physical) == (position, 0, 0)


def test_a_plane_says_what_it_is_and_does_not_change() -> None:
    plane = Plane.zeroed(8, 2, 4, torch.bfloat16, Layout.TOKEN_MAJOR)
    assert (plane.capacity, plane.len, plane.origin_logical, plane.origin_physical) == (8, 0, 0, 0)
    assert (plane.dtype, plane.layout, plane.key.shape) == (torch.bfloat16, "token-major", (8, 2, 4))
    assert not plane.key.any()
    assert not plane.value.any()
    with pytest.raises(FrozenInstanceError):
        plane.ring = Ring(9)  # type: ignore[misc]


@pytest.mark.parametrize(("layout", "index"), [(Layout.TOKEN_MAJOR, token_major), (Layout.HEAD_MAJOR, head_major)])
@pytest.mark.parametrize(("capacity", "kv_heads", "head_dim"), [(8, 1, 4), (8, 2, 4), (5, 3, 2)])
def test_a_row_lies_where_its_layout_says(layout: Layout, index, capacity: int, kv_heads: int, head_dim: int) -> None:
    plane = Plane.zeroed(capacity, kv_heads, head_dim, torch.float32, layout)
    for slot in range(capacity):
        row = torch.arange(kv_heads * head_dim, dtype=torch.float32).view(kv_heads, head_dim) + 100 * slot
        plane.put(Slot(slot), row, -row)
    places = [(s, h, d) for s in range(capacity) for h in range(kv_heads) for d in range(head_dim)]
    indices = [index(*place, capacity, kv_heads, head_dim) for place in places]
    assert sorted(indices) == list(range(len(places)))
    for (s, h, d), at in zip(places, indices, strict=True):
        assert plane.key.flatten()[at] == 100 * s + h * head_dim + d == -plane.value.flatten()[at]
    other = [token_major(*place, capacity, kv_heads, head_dim) for place in places]
    assert (indices == other) == (layout is Layout.TOKEN_MAJOR or kv_heads == 1)


def test_the_least_capacity_and_the_most() -> None:
    assert window.ring_capacity(2048, 131_072) == 2048 + window.SLACK_ROWS
    assert window.ring_capacity(1, 1) == 32
    assert window.ring_capacity(4096, 100) == 100


def positions_modulo_capacity(source: str) -> list[int]:
    """Lines that take something modulo a capacity."""
    return [node.lineno for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            and re.search(r"\bcapacity\b", ast.unparse(node.right))]  # fmt: skip


def test_no_slot_is_derived_outside_the_ring() -> None:
    found = {
        str(path.relative_to(TOP))
        for room in ("runtime", "cybergraph", "cli", "benchmarks")
        for path in (TOP / room).rglob("*.py")
        if positions_modulo_capacity(path.read_text())
    }
    assert found == {"runtime/rings/ring.py"}
    assert positions_modulo_capacity("slot = position % self.capacity") == [1]


def test_a_position_is_no_slot_for_the_type_checker(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    module, source = tmp_path / "mixed.py", (TOP / "runtime/rings/ring.py").read_text()
    (tmp_path / "ring.py").write_text(source.replace("from ...cybergraph", "from cybergraph"))
    for call, wanted in (("ring.slot(Position(3))", 0), ("ring.slot(Slot(3))", 1), ("ring.slot(3)", 1)):
        module.write_text(f"from ring import Position, Ring, Slot\nring = Ring(4)\n{call}\n")
        arguments = ["--strict", "--ignore-missing-imports", "--config-file", "", "--cache-dir", str(tmp_path / "c")]
        output, _, status = mypy.run([*arguments, str(module)])
        assert status == wanted, output


def snapshot_parts():
    planes = [Plane.zeroed(7, 2, 4, torch.float32), Plane.zeroed(32, 2, 4, torch.float32)]
    rows = torch.arange(10 * 8, dtype=torch.float32).view(2, 10, 4)
    planes = [plane.append_batch(P(0), rows, -rows, layer=0) for plane in planes]
    return planes, take_snapshot(planes, KINDS, range(10)), shape_of(planes, KINDS)


def test_a_snapshot_comes_back_with_the_rotation_of_a_sequence_built_from_0() -> None:
    planes, snapshot, _ = snapshot_parts()
    assert [each.rows for each in snapshot.layers] == [4, 10]
    assert planes[0].ring.slot(P(6)) == 6  # a ring that began anew at 6 would have it in slot 0
    fresh = [Plane.zeroed(plane.capacity, 2, 4, plane.dtype) for plane in planes]
    for plane, back in zip(planes, restore(snapshot, fresh, KINDS), strict=True):
        first = back.origin_logical
        for ours, theirs in zip(plane.gather(first, P(10)), back.gather(first, P(10)), strict=True):
            assert torch.equal(ours, theirs)
        assert [plane.ring.slot(P(p)) for p in range(first, 10)] == [back.ring.slot(P(p)) for p in range(first, 10)]


def broken(rule: str):
    _, snapshot, shape = snapshot_parts()
    first, second = snapshot.layers
    changed = {
        "position": replace(snapshot, position=0, tokens=()),
        "tokens": replace(snapshot, tokens=snapshot.tokens[1:]),
        "encoding": replace(snapshot, encoding="F16Le"),
        "layers": replace(snapshot, layers=(second, first)),
        "rows": replace(snapshot, layers=(replace(first, rows=5, key=bytes(160), value=bytes(160)), second)),
        "bytes": replace(snapshot, layers=(replace(first, key=first.key[:-1]), second)),
    }
    if rule == "overflow":
        return snapshot, Shape(shape.kinds, shape.encoding, 1 << 60)
    return changed[rule], shape


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_the_gate_names_the_rule(rule: str) -> None:
    with pytest.raises(MalformedBytes) as caught:
        require_fit(*broken(rule))
    assert caught.value.data["rule"] == rule
    _, snapshot, shape = snapshot_parts()
    require_fit(snapshot, shape)


def test_a_refused_snapshot_touches_no_plane() -> None:
    planes = [Plane.zeroed(6, 2, 4, torch.float32), Plane.zeroed(32, 2, 4, torch.float32)]
    with pytest.raises(MalformedBytes):
        restore(broken("bytes")[0], planes, KINDS)
    assert not any(plane.key.any() for plane in planes)


def test_blocks_age_by_layer() -> None:
    kinds = (LayerKind(window=16), LayerKind(window=64), LayerKind(window=None))
    stages = [window.readers(kinds, block, block_size=16, length=160) for block in range(10)]
    assert stages == [(2,)] * 5 + [(1, 2)] * 3 + [(0, 1, 2)] * 2
    assert window.unread_blocks(kinds[:2], block_size=16, length=160) == 5
    assert window.unread_blocks(kinds, block_size=16, length=160) == 0
