"""What changes no bit: where pages lie, who else is in the batch, how a prompt is cut, what unused memory holds."""

from dataclasses import replace

import pytest
import torch

from cyberkv.runtime.cuda import reference
from tests.gpu.cases import Case, attention, case, ints, same_bits, tables_of_turns

PLAIN = attention(3, 1, 64, 16)
WINDOWED = attention(2, 1, 80, 32, rotary_dims=32, window=40)
HALF = attention(4, 1, 128, 64, "bf16")
KINDS = {"plain": PLAIN, "windowed": WINDOWED, "half": HALF}


def each(name: str) -> pytest.MarkDecorator:
    """One of them at once, the others where there is time, or a GPU."""
    marks = {kind: () if kind == name else pytest.mark.slow for kind in KINDS}
    return pytest.mark.parametrize("a", [pytest.param(KINDS[kind], id=kind, marks=marks[kind]) for kind in KINDS])


@each("half")
def test_pages_may_lie_anywhere(a) -> None:
    one, other = (case(a, [264, 40], order=order) for order in (0, 1))
    assert not torch.equal(one.tables, other.tables)
    q = one.ask(4)
    assert same_bits(one.decode(q[:, 0]), other.decode(q[:, 0]))
    assert same_bits(one.prefill(q, [260, 36]), other.prefill(q, [260, 36]))


def test_control_pages_in_another_order_are_another_text() -> None:
    made = case(PLAIN, [264])
    q = made.ask(1)[:, 0]
    before = made.decode(q)
    made.tables[:, [0, 1]] = made.tables[:, [1, 0]]
    assert not same_bits(made.decode(q), before)


@pytest.mark.parametrize(
    "page_size", [pytest.param(32, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow), 128]
)
def test_the_page_size_changes_no_bit(page_size: int) -> None:
    one, other = case(PLAIN, [264]), case(replace(PLAIN, page_size=page_size), [264])
    q = one.ask(14)
    assert same_bits(one.decode(q[:, 0]), other.decode(q[:, 0]))
    assert same_bits(one.prefill(q, [250]), other.prefill(q, [250]))


@each("windowed")
def test_neighbours_and_their_order_change_no_bit(a) -> None:
    made = case(a, [264, 40, 1], bases=[0, 9, 2])
    q = made.ask(4)
    starts = [260, 36, 0]
    decoded, filled = made.decode(q[:, 0]), made.prefill(q, starts)
    for requests in ([2, 0, 1], [1]):
        some = made.only(requests)
        assert same_bits(some.decode(q[requests, 0]), decoded[requests])
        assert same_bits(some.prefill(q[requests], [starts[r] for r in requests]), filled[requests])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in place of a device
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_neighbour_that_is_no_number_changes_no_bit(bad: float) -> None:
    made = case(PLAIN, [40, 40])
    q = made.ask(4)
    decoded, filled = made.decode(q[:, 0]), made.prefill(q, [36, 36])
    for position in range(40):
        made.slot(1, position).fill_(bad)
    asked = q.clone()
    asked[1] = bad
    for before, after in ((decoded, made.decode(asked[:, 0])), (filled, made.prefill(asked, [36, 36]))):
        assert same_bits(before[0], after[0])
        assert after[1].isnan().all()


def test_pages_that_two_have_in_common_are_read_as_if_each_had_its_own() -> None:
    made = case(PLAIN, [40, 40])
    made.tables[1, :2] = made.tables[0, :2]
    q = made.ask(4)
    decoded, filled = made.decode(q[:, 0]), made.prefill(q, [36, 36])
    for request in (0, 1):
        alone = made.only([request])
        assert same_bits(alone.decode(q[[request], 0]), decoded[[request]])
        assert same_bits(alone.prefill(q[[request]], [36]), filled[[request]])
    assert not same_bits(made.only([1]).decode(q[[0], 0]), decoded[[0]])  # the third page is its own


def test_control_another_length_changes_bits() -> None:
    made = case(PLAIN, [264])
    q = made.ask(1)[:, 0]
    assert not same_bits(replace(made, lengths=made.lengths - 1).decode(q), made.decode(q))


def test_a_wider_table_changes_no_bit() -> None:
    one, other = case(PLAIN, [264]), case(PLAIN, [264], wider=40)
    assert same_bits(one.decode(one.ask(1)[:, 0]), other.decode(one.ask(1)[:, 0]))


def in_chunks(made: Case, q: torch.Tensor, start: int, cuts: list[int]) -> torch.Tensor:
    parts = []
    for first, last in zip([0, *cuts], [*cuts, q.shape[1]], strict=True):
        short = replace(made, lengths=ints([start + last]))
        parts.append(short.prefill(q[:, first:last], [start + first]))
    return torch.cat(parts, dim=1)


@each("plain")
def test_how_a_chunk_is_cut_changes_no_bit(a) -> None:
    made = case(a, [270])
    q = made.ask(20)
    whole = made.prefill(q, [250])
    assert same_bits(in_chunks(made, q, 250, [1, 16, 17]), whole)


def test_control_one_sum_over_all_keys_has_other_bits() -> None:
    made = case(PLAIN, [270])
    q = made.ask(20)
    cos, sin = (table.cpu() for table in tables_of_turns(PLAIN))
    where = torch.arange(270)
    slots = made.kv.cpu()[made.tables[0].cpu()[where // 16].long(), :, where % 16]
    keys = reference.turned(slots[:, 0], where, cos, sin, PLAIN).float()[:, 0]
    asking = reference.turned(q[0].cpu(), where[250:], cos, sin, PLAIN).float().transpose(0, 1)
    mask = torch.ones(20, 270, dtype=torch.bool).tril(250)
    plain = torch.nn.functional.scaled_dot_product_attention(
        asking, keys.expand(3, -1, -1), slots[:, 1, 0].expand(3, -1, -1), mask
    ).transpose(0, 1)
    whole = made.prefill(q, [250])[0].cpu()
    assert (plain - whole).abs().max() < 2e-6
    assert not same_bits(plain, whole)


@each("half")
def test_what_stands_after_a_chunk_changes_no_bit(a) -> None:
    made = case(a, [264, 40])
    q = made.ask(4)
    out = made.prefill(q, [100, 30])
    assert same_bits(out, replace(made, lengths=ints([104, 34])).prefill(q, [100, 30]))
    assert not same_bits(out, made.prefill(q, [101, 30]))


@each("windowed")
def test_what_unused_memory_holds_changes_no_bit(a) -> None:
    clean, poisoned = case(a, [264, 40], fill=0.0), case(a, [264, 40])
    if a.window:  # what a window left behind is unused, too: its rows and the entries of its pages
        for request, length in enumerate([264, 40]):
            behind = max(0, length - 4 - a.window + 1)
            for position in range(behind):
                poisoned.slot(request, position).fill_(float("nan"))
            poisoned.tables[request, : behind // a.page_size] = 1 << 30
    q = clean.ask(8)
    padded = q.clone()
    padded[:, 4:] = float("nan")
    assert same_bits(poisoned.decode(q[:, 0]), clean.decode(q[:, 0]))
    out = poisoned.prefill(padded, [260, 36])
    assert same_bits(out, clean.prefill(q, [260, 36]))
    assert not out[:, 4:].any()
    assert out[:, :4].isfinite().all()


@each("plain")
def test_control_a_slot_that_is_used_reaches_the_output(a) -> None:
    made = case(a, [264])
    made.slot(0, 263 - 20).fill_(float("nan"))
    assert made.decode(made.ask(1)[:, 0]).isnan().any()
    assert made.prefill(made.ask(4), [260]).isnan().any()


@each("half")
def test_rotated_pages_have_the_bits_of_fused_rotation(a) -> None:
    raw = case(a, [264], bases=[5])
    hot = replace(raw, pool=raw.pool.clone(), attention=replace(a, rotated=True))
    cos, sin = tables_of_turns(a)
    half = a.rotary_dims // 2
    for position in range(264):
        key = hot.slot(0, position)[0]
        c, s = cos[5 + position], sin[5 + position]
        x, y = key[:, :half].float(), key[:, half : 2 * half].float()
        turned = torch.cat((x * c - y * s, y * c + x * s), dim=-1)
        key[:, : 2 * half] = turned.to(key.dtype)
    q = raw.ask(4)
    assert same_bits(hot.decode(q[:, 0]), raw.decode(q[:, 0]))
    assert same_bits(hot.prefill(q, [260]), raw.prefill(q, [260]))
    assert not same_bits(replace(hot, attention=a).decode(q[:, 0]), raw.decode(q[:, 0]))


def test_rows_beyond_2_to_the_31_numbers_are_reached() -> None:
    a = attention(1, 1, 64, 16, "f16")
    made = case(a, [20])
    row_numbers = made.pool.shape[1:].numel()
    # Never touched but for its end, so it takes no memory.
    large = made.pool.new_empty((1 << 31) // row_numbers + 16, *made.pool.shape[1:])
    shift = len(large) - len(made.pool)
    large[shift:] = made.pool
    far = replace(made, pool=large, tables=made.tables + shift)
    q = made.ask(1)
    assert same_bits(far.decode(q[:, 0]), made.decode(q[:, 0]))
    assert same_bits(far.prefill(q, [19]), made.prefill(q, [19]))
