"""The laws of `test_bits` at sizes at which a GPU is full, over and over, while something else uses it.

Where there is a GPU: sixteen sequences of 2,040 tokens in the shape of an 8B model. Elsewhere small ones, which only
show that the tests run.
"""

from dataclasses import replace

import pytest
import torch

from cyberkv.runtime.cuda.device import TorchDevice
from cyberkv.runtime.cuda.kernels import launch
from tests.gpu.cases import DEVICE, Case, attention, case, ints, random, same_bits

pytestmark = pytest.mark.slow
ON_GPU = DEVICE.type == "cuda"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
A = attention(32, 8, 128, 16, "bf16") if ON_GPU else attention(4, 1, 64, 16, "bf16")
LENGTHS = [2040 - 7 * i for i in range(16)] if ON_GPU else [530, 300, 17]
ROWS = 1000 if ON_GPU else 12
REPEATS = 20 if ON_GPU else 2


@pytest.fixture(scope="module")
def made() -> Case:
    return case(A, LENGTHS)


def test_a_second_time_has_the_same_bits(made: Case) -> None:
    q = made.ask(ROWS)
    starts = [max(0, length - ROWS) for length in LENGTHS]
    decoded, filled = made.decode(q[:, 0]), made.prefill(q, starts)
    beside = torch.cuda.Stream() if ON_GPU else None
    for _ in range(REPEATS):
        if beside is not None:
            with torch.cuda.stream(beside):
                other = torch.randn(2048, 2048, device=DEVICE)
                other @ other
        assert same_bits(made.decode(q[:, 0]), decoded)
        assert same_bits(made.prefill(q, starts), filled)
    assert not same_bits(made.decode(q[:, 1]), decoded)


def test_pages_may_lie_anywhere(made: Case) -> None:
    other = case(A, LENGTHS, order=1)
    assert not torch.equal(other.tables, made.tables)
    q = made.ask(ROWS)
    starts = [max(0, length - ROWS) for length in LENGTHS]
    assert same_bits(other.decode(q[:, 0]), made.decode(q[:, 0]))
    assert same_bits(other.prefill(q, starts), made.prefill(q, starts))


def test_each_alone_has_the_bits_of_all_together(made: Case) -> None:
    q = made.ask(1)[:, 0]
    together = made.decode(q)
    for number in range(len(LENGTHS)):
        assert same_bits(made.only([number]).decode(q[[number]]), together[[number]])
    assert not same_bits(made.only([0]).decode(q[[1]]), together[[0]])


@pytest.mark.parametrize("cuts", [[1], [16, 512], [333, 334, 777]] if ON_GPU else [[1, 7]], ids=str)
def test_how_a_prompt_is_cut_changes_no_bit(made: Case, cuts: list[int]) -> None:
    one, start = made.only([0]), LENGTHS[0] - ROWS
    q = one.ask(ROWS)
    whole = one.prefill(q, [start])
    parts = [
        replace(one, lengths=ints([start + last])).prefill(q[:, first:last], [start + first])
        for first, last in zip([0, *cuts], [*cuts, ROWS], strict=True)
    ]
    assert same_bits(torch.cat(parts, dim=1), whole)


def test_a_row_of_many_has_the_bits_of_one() -> None:
    rows, inputs, outputs = (1000, 4096, 4096) if ON_GPU else (33, 64, 48)
    x = random(rows, inputs, dtype="bf16", seed=1).to(DEVICE)
    weight = random(outputs, inputs, dtype="bf16", seed=2).to(DEVICE)
    norm = random(inputs, dtype="bf16", seed=3).to(DEVICE)
    products, norms = launch.linear(x, weight), launch.rms_norm(x, norm, 1e-5)
    for row in (0, 1, 15, 16, rows // 2, rows - 1):
        alone = x[row : row + 1]
        assert same_bits(launch.linear(alone, weight), products[row : row + 1])
        assert same_bits(launch.rms_norm(alone, norm, 1e-5), norms[row : row + 1])
    assert same_bits(launch.linear(x[: rows // 2], weight), products[: rows // 2])
    assert not same_bits(products[:1], products[1:2])


@needs_gpu
def test_what_was_captured_has_the_bits_of_what_is_launched(made: Case) -> None:
    q = made.ask(1)[:, 0]
    later = made.ask(1, seed=2)[:, 0]
    expected, then = made.decode(q), made.decode(later)
    asked, out = q.clone(), []
    graph = TorchDevice().capture(lambda: out.append(made.decode(asked)))
    graph.replay()
    assert same_bits(out[0], expected)
    asked.copy_(later)
    graph.replay()
    assert same_bits(out[0], then)
    assert not same_bits(then, expected)


@needs_gpu
def test_a_capture_that_fails_leaves_the_stream_and_the_next_capture_as_they_were(made: Case) -> None:
    q = made.ask(1)[:, 0]
    expected, device, stream = made.decode(q), TorchDevice(), torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        device.capture(torch.cuda.synchronize)
    assert torch.cuda.current_stream() == stream
    assert same_bits(made.decode(q), expected)
    out: list[torch.Tensor] = []
    device.capture(lambda: out.append(made.decode(q))).replay()
    assert same_bits(out[0], expected)
