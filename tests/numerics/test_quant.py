"""The quantised lane: what attention sees is what the stored bytes say, live and after a load, within the bound."""

import json
import math
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from cyberkv.cybergraph.chain import closure, load_root, walk
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import IdentityMismatch, UnsafeNumerics, UnsupportedModel
from cyberkv.cybergraph.gateway.content import Published
from cyberkv.cybergraph.gateway.pages.heat import Heats
from cyberkv.cybergraph.gateway.pages.reader import Reader
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.leafsize import RELATIVE_ERROR
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.request import Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.edits.evict import evict
from cyberkv.runtime.edits.receipt import Cut
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.geometry import Geometry, KvScheme
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry, smollm2_source
from cyberkv.runtime.norms import block_norms
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.quant import LEAST_SCALE, Int8Rows
from cyberkv.runtime.reblock import reblock
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.splice.place import splice_approximately
from cyberkv.runtime.steps.drafting import PromptLookup
from fixtures.golden import quantised_row
from tests.numerics.test_splice import case, worst
from tests.numerics.together import Heard, State, alone

SCHEME: KvScheme = "int8/row/f32"
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(400)]
VECTOR = json.loads((Path(__file__).parents[2] / "fixtures" / "vectors.json").read_text())["quantised_leaf"]
HEAD_DIM = 4
PACKING = Int8Rows(HEAD_DIM)
Engines = Callable[..., Engine]

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows_of_any_size = st.one_of(
    st.lists(numbers, min_size=HEAD_DIM, max_size=HEAD_DIM),
    st.builds(  # numbers that lie halfway between two integers, or next to it
        lambda scale, halves: [struct.unpack("<f", struct.pack("<f", scale * half / 2))[0] for half in halves],
        st.integers(1, 1 << 17).map(lambda bits: bits * 2.0**-30),
        st.lists(st.integers(-254, 254), min_size=HEAD_DIM - 1, max_size=HEAD_DIM - 1).map(lambda all_: [254, *all_]),
    ),
)


def scale_of(stored: Tensor, head_dim: int = HEAD_DIM) -> Tensor:
    """Shape: [..., head_dim + 4] -> [..., 1] float64."""
    return stored[..., head_dim:].contiguous().view(torch.float32).double()


@given(rows_of_any_size)
@example([0.0] * HEAD_DIM)
@example([3.4028234663852886e38] * HEAD_DIM)
@example([2.0**-149, 0.0, -(2.0**-126), 2.0**-127])
def test_a_row_is_what_the_definition_says_and_within_half_a_scale(row: list[float]) -> None:
    values = torch.tensor(row, dtype=torch.float32)
    stored = PACKING.pack(values)
    assert stored.numpy().tobytes() == quantised_row(tuple(row))

    scale, read = float(scale_of(stored)), PACKING.unpack(stored).tolist()
    assert all(math.isfinite(number) for number in read)
    assert read == [number * scale for number in stored[:HEAD_DIM].tolist()]  # exactly, in float64
    largest = max(abs(Fraction(number)) for number in row)
    most = max(largest * RELATIVE_ERROR[SCHEME], Fraction(LEAST_SCALE) / 2)
    for number, got in zip(row, read, strict=True):
        off = abs(Fraction(number) - Fraction(got))
        assert off <= Fraction(scale) / 2 <= most
    assert torch.equal(PACKING.pack(PACKING.unpack(stored)), stored)  # what was read has the same bytes again


def test_half_a_scale_is_reached_and_halves_go_to_even() -> None:
    stored = PACKING.pack(torch.tensor([127.0, 0.5, 1.5, -2.5]))
    assert stored[:HEAD_DIM].tolist() == [127, 0, 2, -2]
    assert scale_of(stored).item() == 1.0


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(spoilt: float) -> None:
    values = torch.ones(3, 2, HEAD_DIM)
    PACKING.pack(values)  # control
    values[1, 0, 2] = spoilt
    with pytest.raises(UnsafeNumerics) as caught:
        PACKING.pack(values)
    assert caught.value.data == {"scheme": SCHEME}


def test_a_leaf_of_the_vectors() -> None:
    """K of three tokens, then V, of one layer: a tail leaf, integers and scale row by row."""
    pool = Pool(Geometry(1, 1, HEAD_DIM, block_size=16, layers_per_leaf=1, dtype="f32", scheme=SCHEME), 1)
    row = pool.allocate()
    values = torch.tensor(VECTOR["rows"], dtype=torch.float32).view(2, 3, 1, HEAD_DIM)
    pool.rows[row, 0, :, :3] = pool.packing.pack(values)
    [leaf] = pool.tail_leaves(row, 3)
    assert leaf.hex() == VECTOR["hex"]
    assert str(Cid.of(leaf, "raw", "blake3")) == VECTOR["cid"]
    assert len(leaf) == pool.geometry.tail_leaf_bytes(0, 3) == 6 * (HEAD_DIM + 4)
    assert [len(leaf) for leaf in pool.leaves(row)] == [pool.geometry.leaf_bytes(0)]
    assert not pool.packing.unpack(pool.rows[row, 0, :, 3:]).any()  # fresh memory is zeros


def test_norms_are_those_of_what_is_read_and_pages_show_them(engines: Engines) -> None:
    live = started(engines(), 40)
    store, index, model = live.engine.store, live.engine.index, live.engine.model
    node = Block.decode(store.get(live.blocks[1]))
    measured = block_norms(model, [store.get(leaf) for leaf in node.kv])
    values = read(live.engine.pool, live.sequence.table[1]).double()
    assert torch.allclose(torch.tensor(measured).double(), values.square().mean(dim=(2, 4)).sqrt())
    index.publish(root := record(live), closure(store, root))
    heat = Heats(Reader(Published(store, index)), block_norms).of(live.blocks[1], node, model)
    assert [[spot.text for spot in row] for row in heat.rows] == [
        [f"{value:.3g}" for part in layer for value in part] for layer in measured
    ]


def test_other_element_types_are_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        Registry(tmp_path).add(tiny("llama"), dtype="bf16", scheme=SCHEME)
    assert caught.value.data == {"field": "kv_quant_scheme", "got": SCHEME}


@pytest.fixture
def engines(tiny: Callable[[str], Path], tmp_path: Path) -> Iterator[Engines]:
    """Give engines over homes by name; the scheme is quantised unless told otherwise."""
    homes: dict[str, tuple[DiskStore, Index]] = {}
    registry, domains = Registry(tmp_path / "models"), dict[str, Any]()

    def engine(family: str = "llama", scheme: KvScheme = SCHEME, *, home: str = "home", block_size: int = 16) -> Engine:
        if home not in homes:
            homes[home] = DiskStore(tmp_path / home / "store"), Index(tmp_path / home / "index")
        name = f"{family}-{scheme[:4]}-{block_size}"
        loaded = registry.load(registry.add(tiny(family), name=name, block_size=block_size, scheme=scheme))
        made = build_engine(loaded, *homes[home], capacity_tokens=2048, domain=domains.get(name))
        domains[name] = made.domain
        return made

    yield engine
    for store, index in homes.values():
        store.close()
        index.close()


def started(engine: Engine, tokens: int) -> Live:
    live = Live(engine)
    live.append(TOKENS[:tokens])
    return live


def record(live: Live) -> Cid:
    return checkpoint(live, title="t", created="")


def read(pool: Pool, row: int) -> Tensor:
    """What attention reads of a row. Shape: [num_layers, K|V, block_size, kv_heads, head_dim]."""
    return pool.packing.unpack(pool.rows[row])


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_a_resume_is_bit_equal_and_so_are_names(family: str, engines: Engines) -> None:
    engine = engines(family)
    assert (engine.domain.broken, engine.domain.scattered) == (None, None)
    live = started(engine, 100)
    said = list(live.generate(20, Sampling()))
    again = resume(engine, record(live))
    assert torch.equal(again.next_logits(), live.next_logits())
    assert list(again.generate(20, Sampling())) == list(live.generate(20, Sampling()))
    assert again.blocks == live.blocks

    other = Live(engines(family, home="other"))
    for start in range(0, 100, 16):  # cut otherwise, one block at a time
        other.append(TOKENS[start : min(start + 16, 100)])
    other.append(said)
    assert other.blocks == live.blocks[: len(other.blocks)]
    plain = started(engines(family, "none", home="plain"), 100)
    assert not torch.equal(plain.next_logits(), started(engine, 100).next_logits())  # control


def test_attention_reads_what_is_stored(engines: Engines) -> None:
    """The rows that attention has are made of the stored ones, not of those that were quantised."""
    live = started(engines("smollm3"), 60)  # layer 1 does not rotate, so its K stands there as it is read
    values = torch.cat([read(live.engine.pool, row) for row in live.sequence.table], dim=2)[:, :, :60]
    keys, kept = live.sequence.keys_values(1, 0, 60)
    assert live.engine.config.layers[1].rotated is False
    assert torch.equal(keys, values[1, 0].transpose(0, 1))
    assert torch.equal(kept, values[1, 1].transpose(0, 1))


def test_a_restored_block_has_its_scales(engines: Engines) -> None:
    """Into a pool of zeros, the other way round than where integers came back and scales did not."""
    live = started(engines(), 100)
    root, logits = record(live), live.next_logits()
    fresh = engines()
    assert fresh.pool is not live.engine.pool
    assert torch.equal(resume(fresh, root).next_logits(), logits)

    lost = resume(engines(), root)
    head_dim = lost.engine.config.head_dim
    lost.engine.pool.rows[lost.sequence.table, ..., head_dim:] = 0
    lost.sequence._ends = [0] * lost.engine.config.num_layers
    lost.sequence.heat_blocks(0, len(lost.blocks))
    lost.sequence.heat_rows(lost.boundary, len(lost.tail))
    assert not torch.equal(lost.next_logits(), logits)  # control


def test_the_same_text_has_other_names_and_is_refused_by_both_values(engines: Engines) -> None:
    roots, names = {}, {}
    for scheme in ("none", SCHEME):
        live = started(engines(scheme=scheme), 100)
        roots[scheme] = record(live)
        steps = list(walk(live.engine.store, load_root(live.engine.store, roots[scheme])))
        names[scheme] = {each for step in steps for each in (step.cid, *step.block.kv)}
        assert live.counts.tokens_reused == 0
    assert names["none"].isdisjoint(names[SCHEME])
    for ours, theirs in (("none", SCHEME), (SCHEME, "none")):
        with pytest.raises(IdentityMismatch) as caught:
            resume(engines(scheme=ours), roots[theirs])
        data = caught.value.data
        assert (data["field"], data["expected"], data["got"]) == ("kv_quant_scheme", ours, theirs)
    assert started(engines(), 100).counts.tokens_reused == 96  # control: its own blocks are found


def test_rows_are_within_the_bound_of_those_that_were_computed(engines: Engines) -> None:
    """The first layer's K and V depend on the tokens alone, so the plain lane has what was quantised."""
    plain, live = (started(engines(scheme=scheme), 100) for scheme in ("none", SCHEME))
    for ours, theirs in zip(live.sequence.table, plain.sequence.table, strict=True):
        stored = live.engine.pool.rows[ours, 0]
        off = (read(live.engine.pool, ours)[0].double() - plain.engine.pool.rows[theirs, 0].double()).abs()
        half = scale_of(stored, live.engine.config.head_dim) / 2
        written = half > LEAST_SCALE  # rows of a tail that nobody wrote are zeros
        assert (off <= half).logical_or(~written).all()
        assert (off > half / 2).any()  # control: half of the bound would not do
        assert torch.equal(live.engine.pool.packing.pack(plain.engine.pool.rows[theirs, 0])[written[..., 0]],
                           stored[written[..., 0]])  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_fork_rollback_and_evict(family: str, engines: Engines) -> None:
    engine = engines(family)
    live, oracle = started(engine, 100), engines(family, home="oracle")
    expected = started(oracle, 70)
    fork = live.fork(70)
    assert torch.equal(fork.next_logits(), expected.next_logits())
    live.rollback(70)
    assert torch.equal(live.next_logits(), expected.next_logits())

    cut = started(engine, 100)
    evict(cut, [Cut(20, 53)])
    without = Live(oracle)
    without.append(TOKENS[:20] + TOKENS[53:100])
    assert cut.blocks == without.blocks
    assert torch.equal(cut.next_logits(), without.next_logits())

    fast = started(engine, 100)
    before = torch.cat([engine.pool.rows[row] for row in fast.sequence.table], dim=2) if family == "llama" else None
    evict(fast, [Cut(20, 53)], "fast")
    if before is not None:  # its rows were moved as they are, scales and all
        after = torch.cat([engine.pool.rows[row] for row in fast.sequence.table], dim=2)
        assert torch.equal(after[:, :, 20:67], before[:, :, 53:100])
    assert fast.approx
    again = resume(engine, record(fast))
    assert torch.equal(again.next_logits(), fast.next_logits())


def test_reblock(engines: Engines) -> None:
    live = started(engines(), 133)
    moved = reblock(live.engine.store, live.engine.index, record(live), 64)
    native = started(engines(block_size=64, home="native"), 133)
    steps = walk(live.engine.store, load_root(live.engine.store, moved))
    assert [step.cid for step in steps] == native.blocks
    assert torch.equal(resume(engines(block_size=64), moved).next_logits(), native.next_logits())


def test_documents_are_spliced(engines: Engines) -> None:
    made = case(engines())
    roots, errors = [], []
    for share in (0.0, 1.0):
        root, receipt = splice_approximately(
            made.engine, made.origin, made.text, made.rows, share=share, measured=True, title="s", created=""
        )
        assert receipt.error is not None
        roots.append(root)
        errors.append(receipt.error)
    for error in errors:  # the first layer depends on tokens alone: taken along or computed again, the same bytes
        assert (error.layers[0].k, error.layers[0].v) == (0.0, 0.0)
    assert worst(errors[1]) < 0.01 < worst(errors[0])
    steps = list(walk(made.engine.store, load_root(made.engine.store, roots[0])))
    live = resume(made.engine, roots[0])
    placed = torch.cat([read(made.engine.pool, row) for row in live.sequence.table], dim=2)
    for start, rows in zip(made.text.spans, made.rows, strict=True):
        at = slice(start.start, min(start.stop, len(steps) * 16))
        assert torch.equal(placed[:, :, at].permute(2, 0, 1, 3, 4), rows[: at.stop - at.start])


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_rows_of_several_conversations_in_one_step(family: str, engines: Engines) -> None:
    asked = [
        Request(tuple(TOKENS[start : start + length]), max_tokens=20, drafter=drafter, keep=State.of)
        for start, length, drafter in ((0, 33, None), (7, 250, PromptLookup()), (0, 16, None))
    ]
    engine, oracle = engines(family), engines(family, home="oracle")
    scheduler, heard = Scheduler(engine, Limits()), [Heard() for _ in asked]
    for request, ear in zip(asked, heard, strict=True):
        scheduler.submit(request, ear)
    while scheduler.busy:
        scheduler.step()
    for request, ear in zip(asked, heard, strict=True):
        chosen, state = alone(oracle, request)
        assert ear.tokens == chosen
        assert ear.outcome.kept.same(state)


def test_decoding_gives_the_blocks_of_prefill(engines: Engines) -> None:
    live = started(engines(), 32)
    for token in TOKENS[32:64]:
        live.decode(token)
    assert live.blocks == started(engines(home="other"), 64).blocks
    other = started(engines(home="third"), 32)
    for token in [TOKENS[32] + 1, *TOKENS[33:64]]:
        other.decode(token)
    assert other.blocks[:2] == live.blocks[:2]
    assert set(other.blocks[2:]).isdisjoint(live.blocks)  # control


@pytest.mark.slow
def test_the_real_model(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    live = {}
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        for scheme in ("none", SCHEME):
            loaded = registry.load(registry.add(smollm2_source(), name=scheme[:4], scheme=scheme))
            live[scheme] = started(build_engine(loaded, store, index, capacity_tokens=1024), 400)
        plain, quantised = live["none"], live[SCHEME]
        head_dim = quantised.engine.config.head_dim
        assert head_dim == 64
        assert quantised.engine.geometry.bytes_per_token / plain.engine.geometry.bytes_per_token == 68 / 256
        for theirs in plain.sequence.table[:25]:  # every layer's rows, quantised for this test
            values = plain.engine.pool.rows[theirs]
            stored = quantised.engine.pool.packing.pack(values)
            back = quantised.engine.pool.packing.unpack(stored)
            assert ((back.double() - values.double()).abs() <= scale_of(stored, head_dim) / 2).all()
        again = resume(quantised.engine, record(quantised))
        assert torch.equal(again.next_logits(), quantised.next_logits())
        ours, right = quantised.next_logits().double(), plain.next_logits().double()
        expected = right.log_softmax(-1)
        kl = float((expected.exp() * (expected - ours.log_softmax(-1))).sum())
        assert 0 < kl < 0.1
