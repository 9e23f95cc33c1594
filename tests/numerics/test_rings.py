"""Windows in rings: every byte is that of a copy of full length, in bounded memory, and nothing that aged is lost."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cyberkv.cybergraph.errors import CacheDiscontinuity
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.canonical import single_step
from cyberkv.runtime.checkpoint import resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.config import LayerKind
from cyberkv.runtime.models.registry import Registry
from cyberkv.runtime.ringcopy import RingCopy
from cyberkv.runtime.rings import window
from cyberkv.runtime.rings.plane import Plane
from cyberkv.runtime.rings.snapshot import restore, take_snapshot
from tests.numerics.full_copy import SIZE, TOKENS, WINDOW, Engines, FullCopySequence, decode, record, started
from tests.numerics.tiny import tiny_model

WINDOWED = ("mistral", "qwen2-window", "smollm3-window")

pytestmark = pytest.mark.usefixtures("poisoned_planes")


def tail_of(live: Live) -> Tensor:
    """Raw rows of the tail: those of full blocks are in their names."""
    return live.engine.pool.rows[live.sequence.table[-1], :, :, : len(live.tail)]


def pair(tiny_engine: Engines, family: str, tokens: list[int]) -> tuple[Live, Live]:
    """The same conversation with rings and with the oracle."""
    ring = started(tiny_engine(family, home="ring"), tokens)
    return ring, started(tiny_engine(family, home="full"), tokens, full=True)


def both(work: Callable[[Live], object], lives: tuple[Live, Live]) -> None:
    for live in lives:
        work(live)
    ring, full = lives
    assert torch.equal(ring.next_logits(), full.next_logits())
    assert ring.blocks == full.blocks
    if ring.tail:
        assert torch.equal(tail_of(ring), tail_of(full))


@pytest.mark.parametrize(("family", "slack"), [*((family, 1) for family in WINDOWED), ("qwen2-window", 256)])
def test_a_conversation_is_that_of_a_full_copy(
    family: str, slack: int, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rings that wrap at once, and rarely."""
    monkeypatch.setattr(window, "SLACK_ROWS", slack)
    lives = pair(tiny_engine, family, TOKENS[:100])
    both(decode(TOKENS[100:120]), lives)
    both(lambda live: live.append(TOKENS[120:690]), lives)
    both(decode(TOKENS[690:708]), lives)
    both(lambda live: live.append(TOKENS[708:728]), lives)
    both(decode(TOKENS[728:748]), lives)
    both(lambda live: live.rollback(739), lives)
    both(decode(TOKENS[800:818]), lives)
    both(lambda live: live.rollback(333), lives)
    both(decode(TOKENS[900:920]), lives)


@pytest.mark.parametrize("family", WINDOWED)
def test_control_another_window_gives_other_blocks(family: str, tiny_engine: Engines) -> None:
    ring, full = pair(tiny_engine, family, TOKENS[:10])
    kinds = tuple(replace(kind, window=kind.window and kind.window + 1) for kind in ring.sequence.config.layers)
    ring.sequence.config = replace(ring.sequence.config, layers=kinds)
    for live in (ring, full):
        live.append(TOKENS[10:64])
    assert ring.blocks != full.blocks


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, WINDOW - 1, WINDOW, WINDOW + 1, 255, 256, 257])
def test_positions_around_blocks_windows_and_panels(
    family: str, length: int, tight: None, tiny_engine: Engines
) -> None:
    lives = pair(tiny_engine, family, TOKENS[:length])
    both(lambda _: None, lives)
    both(decode(TOKENS[length : length + 3]), lives)


@pytest.fixture(scope="module")
def wide_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Engine]]:
    """One layer, a window of 2,048."""
    home = tmp_path_factory.mktemp("wide")
    folder = tiny_model(
        "mistral", home / "model", sliding_window=2048, num_hidden_layers=1, max_position_embeddings=4096
    )
    registry = Registry(home / "models")
    loaded = registry.load(registry.add(folder, name="wide"))

    def engine(name: str) -> Engine:
        store, index = DiskStore(home / name / "store"), Index(home / name / "index")
        opened.extend((store, index))
        return build_engine(loaded, store, index)

    opened: list[Any] = []
    yield engine
    for each in reversed(opened):
        each.close()


@pytest.mark.parametrize("slack", [1, 256])
def test_gate_positions_of_a_window_of_2048(
    slack: int, wide_engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "SLACK_ROWS", slack)
    lives = Live(wide_engine(f"ring-{slack}")), Live(wide_engine(f"full-{slack}"))
    lives[1].sequence = FullCopySequence.of(lives[1].engine)
    at = 0
    for position in (1, 31, 32, 33, 2047, 2048, 2049, 2306, 2560):
        both(lambda live, at=at, position=position: live.append(TOKENS[at:position]), lives)
        both(decode(TOKENS[position : position + 1]), lives)
        at = position + 1
    assert lives[0].sequence._rings.plane(0).origin_logical > 0


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["mistral", "qwen2-window"])
def test_resume_at_every_cut_of_a_wrapped_run(family: str, stride: int, tight: None, tiny_engine: Engines) -> None:
    """By default every third one: that is every place in a block, over a ring's rows and more."""
    engine = tiny_engine(family)
    live = started(engine, TOKENS[:20])
    for cut in range(21, 21 + 3 * SIZE):
        live.decode(TOKENS[cut - 1])
        if cut % stride:
            continue
        again = resume(engine, record(live))
        assert torch.equal(again.next_logits(), live.next_logits())
        ahead = resume(engine, record(live))
        ahead.decode(TOKENS[cut])
        straight = live.fork(cut)
        straight.decode(TOKENS[cut])
        assert torch.equal(ahead.next_logits(), straight.next_logits())
        for each in (again, ahead, straight):
            each.close()
    full = started(tiny_engine(family, home="full"), TOKENS[:20], full=True)
    decode(TOKENS[20 : 20 + 3 * SIZE])(full)
    assert live.blocks == full.blocks
    assert torch.equal(live.next_logits(), full.next_logits())


def test_restore_at_every_cut_of_a_wrapped_run(tight: None, tiny_engine: Engines) -> None:
    """From a snapshot alone: the pool rows of the restored sequence are empty."""
    engine = tiny_engine("mistral")
    kinds, live = engine.config.layers, started(engine, TOKENS[:20])
    for cut in range(21, 21 + 3 * SIZE):
        live.decode(TOKENS[cut - 1])
        planes = [live.sequence._rings.plane(layer) for layer in range(len(kinds))]
        snapshot = take_snapshot(planes, kinds, live.tokens)
        sequence = engine.new_sequence()
        sequence.extend_table(cut + 1)
        engine.pool.rows[torch.tensor(sequence.table)] = float("nan")
        empty = [sequence._rings.plane(layer) for layer in range(len(kinds))]
        sequence._rings._planes = dict(enumerate(restore(snapshot, empty, kinds)))
        sequence._ends = [cut] * len(kinds)
        got = single_step(engine.decoder, sequence, [7], cut)
        other = live.fork(cut)
        other.sequence.extend_table(cut + 1)
        assert torch.equal(got, single_step(engine.decoder, other.sequence, [7], cut))
        sequence.release()
        other.close()


def test_reading_in_place_or_not_gives_the_same(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read where they lie where the span of a panel fits, else in a copy."""
    monkeypatch.setattr(window, "SLACK_ROWS", 600)
    lay, laid = RingCopy._lay, list[bool]()

    def asked(*arguments: Any) -> bool:
        laid.append(len(lives[0].tokens) % 64 < 40 and lay(*arguments))
        return laid[-1]

    lives = pair(tiny_engine, "mistral", TOKENS[:200])
    monkeypatch.setattr(RingCopy, "_lay", asked)
    both(decode(TOKENS[200:262]), lives)
    both(lambda live: live.rollback(210), lives)
    both(decode(TOKENS[300:350]), lives)
    assert {*laid} == {True, False}


def test_overwriting_before_attending_would_show(
    tight: None, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_place(self: RingCopy, layer: int, start: int, k: Tensor, v: Tensor, rows: int, span: tuple[int, int]) -> Any:
        self.keep(layer, start, k[:, :rows], v[:, :rows])
        return self.keys_values(layer, *span)

    lives = pair(tiny_engine, "mistral", TOKENS[:64])
    both(lambda live: live.append(TOKENS[64:128]), lives)
    monkeypatch.setattr(RingCopy, "extended", in_place)
    ring, full = lives
    for live in lives:
        live.append(TOKENS[128:192])
    assert ring.blocks[-1] != full.blocks[-1]


def test_rows_out_of_step_are_refused_in_every_layer(tiny_engine: Engines) -> None:
    engine = tiny_engine("qwen2-window")
    live = started(engine, TOKENS[:40])
    live.sequence.extend_table(64)
    with pytest.raises(CacheDiscontinuity) as caught:
        single_step(engine.decoder, live.sequence, [1], 41)
    assert caught.value.data == {"layer": 0, "expected": 40, "got": 41}
    with pytest.raises(CacheDiscontinuity):
        live.sequence.heat_blocks(3, 4)


@pytest.mark.parametrize("method", ["put", "put_batch", "on"])
@pytest.mark.parametrize("call", [1, 2, 3, 5, 8])
def test_stopped_anywhere_the_next_rows_are_right(
    method: str, call: int, tight: None, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, full = pair(tiny_engine, "mistral", TOKENS[:40])
    decode(TOKENS[40:47])(ring)
    calls, real = 0, getattr(Plane, method)

    def stops(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return real(*arguments)

    for at in range(47, 52):
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(Plane, method, stops)
            with suppress(KeyboardInterrupt):
                ring.decode(TOKENS[at])
                assert torch.isfinite(ring.next_logits()).all()
        if len(ring.tokens) == at:
            ring.decode(TOKENS[at])
    decode(TOKENS[40:52])(full)
    assert ring.tokens == full.tokens
    assert ring.blocks == full.blocks
    assert torch.equal(ring.next_logits(), full.next_logits())


def test_three_windows_in_four_by_the_configuration(tmp_path: Path, tight: None, tiny_engine: Engines) -> None:
    folder = tiny_model(
        "smollm3", tmp_path / "model", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], use_sliding_window=True,
        sliding_window=WINDOW, layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )  # fmt: skip
    registry = Registry(tmp_path / "models")
    loaded = registry.load(registry.add(folder, name="four"))
    expected = [LayerKind(None, rotated=False) if layer % 4 == 3 else LayerKind(WINDOW) for layer in range(4)]
    assert list(loaded.config.layers) == expected
    lives = []
    for name in ("ring", "full"):
        other = tiny_engine("smollm3", home=name)
        live = Live(build_engine(loaded, other.store, other.index, capacity_tokens=1024))
        if name == "full":
            live.sequence = FullCopySequence.of(live.engine)
        lives.append(live)
    both(lambda live: live.append(TOKENS[:300]), (lives[0], lives[1]))
    both(decode(TOKENS[300:324]), (lives[0], lives[1]))


def test_rows_that_are_forgotten_are_not_read_through_the_mask(tiny_engine: Engines) -> None:
    live = Live(tiny_engine("mistral"))
    live.append(TOKENS[:20])
    for token in TOKENS[20:24]:
        live.decode(token)
    expected = live.next_logits().clone()
    rings = live.sequence._rings  # type: ignore[attr-defined]
    live.decode(TOKENS[24])
    for layer in range(live.engine.config.num_layers):
        first, _ = rings._laid[layer]
        for part in rings.plane(layer).by_head:
            part[:, 24 - first] = float("nan")  # as a model that overflows leaves it
    live.rollback(23)
    live.decode(TOKENS[23])
    assert torch.equal(live.next_logits(), expected)
