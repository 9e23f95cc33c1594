"""Conversations on a device: the tokens of the host, and bytes that depend on what was said alone.

The device is the host's memory, and its arithmetic the reference's, in which a row is computed alone.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CacheDiscontinuity, OutOfRange, TierFull, UnsupportedModel
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.request import Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.cuda import reference, workspace
from cyberkv.runtime.edits.evict import evict
from cyberkv.runtime.edits.spans import Cut
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.rows import ARCHIVED
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.selected import Selected
from cyberkv.runtime.selection import POLICIES
from cyberkv.runtime.steps.drafting import PromptLookup
from tests.gpu.engines import Engines, changed
from tests.numerics.together import TOKENS, Heard, State, drain

LENGTH = 32
"""Two blocks."""
CREATED = "2026-01-01T00:00:00Z"
GREEDY, DRAWN = Sampling(), Sampling(5.0, seed=3)


SIZE = 16


def said(engine: Engine, prompt: int = 21, answer: int = 6, sampling: Sampling = GREEDY) -> tuple[Live, list[int]]:
    live = Live(engine)
    live.append(TOKENS[:prompt])
    return live, list(live.generate(answer, sampling))


def rows_of(live: Live) -> torch.Tensor:
    return State.of(live).rows.cpu()


@pytest.mark.parametrize(
    "family",
    [
        "smollm3-window", "glm",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("llama-llama3", "qwen3", "qwen3-yarn")),
    ],
)  # fmt: skip
def test_a_conversation_has_the_tokens_of_the_host(family: str, engines: Engines) -> None:
    """Scaled rotation, of a part and by pairs too, windows, layers without rotation, and norms of q and k."""
    (host, expected), (device, got) = said(engines.host(family)), said(engines.device(family).engine)
    assert got == expected
    assert torch.allclose(rows_of(device), rows_of(host), atol=1e-4)
    assert device.blocks != host.blocks  # the control: other sums, other bytes
    assert (device.sequence.live_bytes, device.engine.pool.used_blocks) == (0, len(device.sequence.table))


@pytest.mark.slow
def test_a_draw_is_made_of_the_same_scores(engines: Engines) -> None:
    assert said(engines.host(), sampling=DRAWN)[1] == said(engines.device().engine, sampling=DRAWN)[1]


def blocks_by_chunks(engine: Engine, cuts: list[int]) -> list[Cid]:
    live, start = Live(engine), 0
    for end in [*cuts, LENGTH]:
        live.append(TOKENS[start:end])
        start = end
    return live.blocks


def blocks_by_decoding(engine: Engine, first: int) -> list[Cid]:
    live = Live(engine)
    live.append(TOKENS[:first])
    for token in TOKENS[first:LENGTH]:
        live.decode(token)
    return live.blocks


def blocks_beside_others(engine: Engine) -> list[Cid]:
    """Chunks of the prompt share steps with rows of others, some of which are decoded."""
    found: list[list[Cid]] = []
    scheduler = Scheduler(engine, Limits(running=3, prefill_tokens=16))
    for start, length in ((7, 17), (90, 33)):
        scheduler.submit(Request(tuple(TOKENS[start : start + length]), max_tokens=2), Heard())
    keep = lambda live: found.append(list(live.blocks))  # noqa: E731
    scheduler.submit(Request(tuple(TOKENS[:LENGTH]), max_tokens=0, keep=keep), Heard())
    drain(scheduler)
    return found[0]


def by_chunk(q: torch.Tensor, *parts: Any) -> torch.Tensor:
    """Another rule: the last bits follow from how many rows there are, as where a library picks the order of sums."""
    return reference.paged_prefill(q, *parts) * (1 + q.shape[1] * 2.0**-22)


def test_bytes_follow_from_the_text_alone(engines: Engines) -> None:
    """Not from chunks, nor from whether a token was given or decoded, nor from who else took part in a step."""
    expected, cuts = blocks_by_chunks(engines.device().engine, []), [5, 21]
    assert len(expected) == LENGTH // SIZE
    assert blocks_by_chunks(engines.device().engine, cuts) == expected
    assert blocks_by_decoding(engines.device().engine, 25) == expected
    assert blocks_beside_others(engines.device().engine) == expected
    naive = [engines.device(functions=changed(paged_prefill=by_chunk)).engine for _ in range(2)]
    assert blocks_by_chunks(naive[0], []) != blocks_by_chunks(naive[1], cuts)  # the control


def otherwise(*parts: Any) -> torch.Tensor:
    """A decode whose last bits differ from those of the prefill, as they may on a device."""
    return reference.paged_decode(*parts) * (1 + 2.0**-20)


@pytest.mark.slow
def test_rows_that_were_decoded_are_computed_again_when_their_block_fills(engines: Engines) -> None:
    """Nothing of the fast way is sealed; until then, it is what a tail holds."""
    fast = changed(paged_decode=otherwise)
    assert blocks_by_decoding(engines.device(functions=fast).engine, 25) == blocks_by_chunks(
        engines.device().engine, []
    )
    tails = [said(engines.device(functions=each).engine, 5, 3)[0] for each in (reference, fast)]
    assert not torch.equal(*(rows_of(live)[5:] for live in tails))
    assert torch.equal(*(rows_of(live)[:5] for live in tails))


def test_it_goes_on_from_a_root_as_if_it_had_never_ended(engines: Engines) -> None:
    """In another engine, from the store, with the rows of the tail; and from any beginning of it, and in a fork."""
    live, _ = said(engines.device().engine, 37, 3)
    root = checkpoint(live, title="kept", created=CREATED)
    again = resume(engines.device(beside=live.engine).engine, root)
    assert again.counts.tokens_computed == 0
    assert again.engine.residency.log.blocks[Tier.L2, Tier.L0] == len(live.blocks) == 2
    assert State.of(again).same(State.of(live))
    fork, whole = live.fork(35), State.of(live)
    assert list(again.generate(2, GREEDY)) == list(live.generate(2, GREEDY))
    assert State.of(again).same(State.of(live))
    live.rollback(35)
    assert State.of(live).same(State.of(fork))
    assert not State.of(live).same(whole)  # the control
    assert list(fork.generate(2, GREEDY)) == list(live.generate(2, GREEDY))
    for each in (live, fork, again):
        each.close()
    for each in (live, again):
        assert each.engine.pool.used_blocks == 0
        assert not each.engine.pool.check_integrity()


@pytest.mark.slow
def test_a_prompt_finds_blocks_on_the_device_below_it_and_in_the_store(engines: Engines) -> None:
    made = engines.device(blocks=6, host_blocks=2)
    engine, live = made.engine, Live(made.engine)
    live.append(TOKENS[:64])
    live.close()
    other = Live(engine)
    other.append(TOKENS[200:264])  # four of six rows: two blocks of the first stay, two go down to host memory
    other.close()
    again = Live(engine)
    again.append(TOKENS[:65])
    assert rows_of(again)[:64].equal(rows_of(said(engines.device().engine, 64, 0)[0]))
    moved = engine.residency.log.blocks
    assert moved[Tier.L0, Tier.L1] >= 2
    assert moved[Tier.L1, Tier.L0] >= 1
    assert again.counts.tokens_reused == 64
    assert not engine.residency.check_integrity()


def test_single_rows_are_captured_and_give_the_same_bits(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over wider tables they are captured anew; and without a capture, every bit is the same."""
    monkeypatch.setattr(workspace, "LEAST_WIDTH", 2)
    captured, plain = (engines.device(captures=captures).engine for captures in (True, False))
    (live, tokens), (other, expected) = said(captured, 20, 15), said(plain, 20, 15)
    assert tokens == expected
    assert State.of(live).same(State.of(other))
    graphs = captured.memory.graphs  # type: ignore[attr-defined]
    # Tables of two blocks, then of four; the first of a kind is computed as it comes, and what fills a block is many.
    assert (graphs.captured, graphs.replayed) == (2, 15 - 1 - 2)
    assert plain.memory.graphs is None  # type: ignore[attr-defined]


ASKED = 4


def asked(number: int, **more: Any) -> Request:
    drafter = PromptLookup() if number % 2 else None
    return Request(
        tuple(TOKENS[number : number + 20 + 9 * number]), max_tokens=24, drafter=drafter, keep=State.of, **more
    )


@pytest.fixture(scope="module")
def alone(engines: Engines) -> list[tuple[list[int], torch.Tensor]]:
    """What each has alone: its answer, and its rows."""
    lone, found = engines.device().engine, []
    for number in range(ASKED):
        live = Live(lone)
        live.append(asked(number).tokens)
        answer = list(live.generate(asked(number).max_tokens, GREEDY))
        live.settle_tail()
        found.append((answer, rows_of(live)))
        live.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rows", [64, 5])
def test_many_in_one_step_have_what_each_has_alone(
    rows: int, engines: Engines, alone: list[tuple[list[int], torch.Tensor]]
) -> None:
    """With drafts, and where there are so few rows that some leave the pool and come back."""
    engine = engines.device(blocks=rows).engine
    scheduler, heard = Scheduler(engine, Limits(running=3, prefill_tokens=32)), [Heard() for _ in range(ASKED)]
    for number, ear in enumerate(heard):
        scheduler.submit(asked(number), ear)
    drain(scheduler)
    assert engine.pool.used_blocks == 0
    assert not engine.residency.check_integrity()
    for ear, (answer, rows_alone) in zip(heard, alone, strict=True):
        assert ear.outcome.error is None
        assert list(ear.outcome.tokens) == answer
        assert isinstance(ear.outcome.kept, State)
        assert torch.equal(ear.outcome.kept.rows.cpu(), rows_alone)
    assert any(ear.outcome.preempted for ear in heard) is (rows == 5)


@pytest.mark.slow
def test_a_draft_changes_nothing(engines: Engines) -> None:
    words = TOKENS[:20] * 2
    drafted, plain = Live(engines.device().engine), Live(engines.device().engine)
    drafted.append(words)
    plain.append(words)
    assert list(drafted.generate(12, GREEDY, drafter=PromptLookup())) == list(plain.generate(12, GREEDY))
    assert drafted.counts.tokens_drafted > 0
    assert drafted.blocks == plain.blocks


OPERATIONS: dict[str, Callable[[Live], object]] = {
    "append": lambda live: live.append(TOKENS[300:320]),
    "decode": lambda live: live.decode(5),
    "fill": lambda live: [live.decode(token) for token in range(4)],
    "replay": lambda live: live.decode(5),
    "scores": lambda live: live.next_logits(),
}


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("replay", RuntimeError("a launch failed")),
        *(
            pytest.param(operation, error, marks=pytest.mark.slow)
            for operation, error in (
                ("append", torch.OutOfMemoryError("none")), ("append", KeyboardInterrupt()),
                ("decode", RuntimeError("a launch failed")), ("fill", KeyboardInterrupt()),
                ("scores", torch.OutOfMemoryError("none")), ("scores", KeyboardInterrupt()),
                ("replay", torch.OutOfMemoryError("none")), ("replay", KeyboardInterrupt()),
            )
        ),
    ],
)  # fmt: skip
def test_after_an_error_in_the_middle_it_is_as_before(operation: str, error: BaseException, engines: Engines) -> None:
    """Wherever in a step that is: at the first launch, in the first layer, in the last; or as a whole."""
    made = engines.device(captures=operation == "replay")
    live, _ = said(made.engine, 10, 3)
    before, length = State.of(live), len(live.tokens)
    undisturbed, _ = said(engines.device().engine, 10, 3)
    for at in (1,) if operation == "replay" else (1, 9, 21):
        live._hidden = None
        made.device.fails_at, made.device.failure = made.device.launches + at, error
        expected = TierFull if isinstance(error, torch.OutOfMemoryError) else type(error)
        with pytest.raises(expected):
            OPERATIONS[operation](live)
        live.rollback(length)  # of several decoded tokens, some may have come
        assert State.of(live).same(before)
    assert list(live.generate(4, GREEDY)) == list(undisturbed.generate(4, GREEDY))
    assert live.blocks == undisturbed.blocks


@pytest.mark.slow
def test_what_fails_for_one_of_many_ends_that_one(engines: Engines) -> None:
    """A step is tried again for each of its parts alone."""
    made = engines.device()
    scheduler, heard = Scheduler(made.engine, Limits(running=3)), [Heard() for _ in range(3)]
    for number, ear in enumerate(heard):
        scheduler.submit(asked(number), ear)
    scheduler.step()
    made.device.fails_at, made.device.failure = made.device.launches + 5, torch.OutOfMemoryError("none")
    drain(scheduler)
    assert [ear.outcome.error for ear in heard] == [None] * 3
    assert not scheduler.check_integrity()


def test_an_archived_block_is_never_read(engines: Engines) -> None:
    """In its place the table has a row that is somebody else's."""
    live, _ = said(engines.device().engine, 33, 0)
    live.sequence.table[1] = ARCHIVED
    with pytest.raises(CacheDiscontinuity, match="archived"):
        live.decode(1)


def test_behind_the_models_positions_nothing_is_computed(engines: Engines) -> None:
    live, _ = said(engines.device().engine, SIZE, 0)
    beyond = live.engine.config.max_positions
    live.sequence._ends = [beyond] * live.engine.config.num_layers
    live.sequence.table *= beyond // 16 + 1
    with pytest.raises(OutOfRange, match=str(beyond)):
        live.sequence.forward(live.engine.decoder, torch.tensor([1]), beyond, 1)


def test_what_reads_rows_in_place_is_refused_by_name(engines: Engines) -> None:
    live, _ = said(engines.device().engine, 12, 0)
    before = State.of(live)
    with pytest.raises(UnsupportedModel, match="selected"):
        Selected(live.engine, POLICIES["recent"])
    with pytest.raises(UnsupportedModel, match="evicting in mode fast"):
        evict(live, [Cut(3, 9)], "fast")
    with pytest.raises(UnsupportedModel, match="rotation"):
        _ = live.engine.rotary
    assert State.of(live).same(before)


def test_no_room_for_weights_or_rows_is_said(engines: Engines) -> None:
    with pytest.raises(TierFull, match="a block takes"):
        engines.device(blocks=0)
