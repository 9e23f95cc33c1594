"""Who computes, for every case; and the adapter to FlashInfer, against a stand-in that computes what it documents."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cyberkv.cybergraph.errors import UnsupportedModel
from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.backends import choose_backend, kernels_of
from cyberkv.runtime.cuda.flashinfer_decode import FlashInferDecode, list_pages
from tests.gpu.cases import Case, attention, case, distance, tables_of_turns

PLAIN = attention(8, 2, 64, 16, "f16")
BOTH = frozenset({"triton", "flashinfer"})
THETA = 10000.0

NOT_TAKEN: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "f32"}, "does not take f32"),
    ({"head_dim": 96, "rotary_dims": 96}, "does not take heads of 96"),
    ({"rotated": True}, "rotated already"),
    ({"rotary_dims": 32}, "whole rows or none"),
    ({"interleaved": True}, "interleaved"),
]
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"head_dim": 72, "rotary_dims": 72}, 90, "head_dim 64, 80, 96, 128 or 256, not 72"),
    ({"scheme": "int8/row/f32"}, 90, "kv_quant_scheme none, not int8"),
    ({"page_size": 8}, 90, "block_size 16, 32, 64 or 128, not 8"),
    ({"dtype": "bf16"}, 75, "kv_dtype f32 or f16 on a device below 80, not bf16"),
    ({}, 70, "capability at least 75, not 70"),
]


@pytest.mark.parametrize("canonical", [True, False])
def test_everything_is_taken_by_what_is_there(canonical: bool) -> None:
    for capability, triton, flashinfer in product((None, 75, 80, 90, 100), (True, False), (True, False)):
        installed = frozenset(name for name in BOTH if {"triton": triton, "flashinfer": flashinfer}[name])
        for change in ({}, {"window": 30}, {"softcap": 5.0}, {"rotary_dims": 0}, {"head_dim": 128, "rotary_dims": 128}):
            choice = choose_backend(replace(PLAIN, **change), capability, installed, theta=THETA, canonical=canonical)
            if capability is None or not triton:
                expected = ("cpu", "triton is not installed" if capability else "no CUDA device")
            elif canonical:
                expected = ("triton", "canonical rows: the order of its sums is fixed")
            else:
                expected = (
                    ("flashinfer", "provisional rows") if flashinfer else ("triton", "flashinfer is not installed")
                )
            assert choice == expected


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize(("change", "capability", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_what_the_kernels_refuse_stays_on_the_cpu(
    change: dict[str, Any], capability: int, reason: str, canonical: bool
) -> None:
    choice = choose_backend(replace(PLAIN, **change), capability, BOTH, theta=THETA, canonical=canonical)
    assert choice.name == "cpu"
    assert reason in choice.reason


@pytest.mark.parametrize(("change", "reason"), NOT_TAKEN, ids=[reason for _, reason in NOT_TAKEN])
def test_what_flashinfer_does_not_take_is_the_kernels(change: dict[str, Any], reason: str) -> None:
    choice = choose_backend(replace(PLAIN, **change), 90, BOTH, theta=THETA, canonical=False)
    assert choice.name == "triton"
    assert reason in choice.reason


def test_scaled_speeds_are_the_kernels_unless_nothing_turns() -> None:
    choice = choose_backend(PLAIN, 90, BOTH, theta=None, canonical=False)
    assert choice == ("triton", "flashinfer does not turn by scaled speeds")
    still = replace(PLAIN, rotary_dims=0)
    assert choose_backend(still, 90, BOTH, theta=None, canonical=False).name == "flashinfer"


class Wrapper:
    """`flashinfer.BatchDecodeWithPagedKVCacheWrapper` as it is documented, in numpy."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 use_tensor_cores: bool = False, backend: str = "auto") -> None:  # fmt: skip
        assert (float_workspace_buffer.dtype, kv_layout, use_tensor_cores) == (torch.uint8, "NHD", True)
        self.plans = 0

    def plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
             head_dim: int, page_size: int, *, pos_encoding_mode: str = "NONE", window_left: int = -1,
             logits_soft_cap: float | None = None, q_data_type: torch.dtype = torch.float16,
             kv_data_type: torch.dtype | None = None, sm_scale: float | None = None,
             rope_scale: float | None = None, rope_theta: float | None = None) -> None:  # fmt: skip
        assert {each.dtype for each in (indptr, indices, last_page_len)} == {torch.int32}
        assert len(indptr) == len(last_page_len) + 1
        assert len(indices) == indptr[-1]
        self.plans += 1
        self.lists = [indices[a:b].numpy() for a, b in pairwise(indptr)]
        self.lengths = [
            (len(pages) - 1) * page_size + int(n) for pages, n in zip(self.lists, last_page_len, strict=True)
        ]
        assert all(1 <= n <= page_size for n in last_page_len)
        self.heads, self.kv_heads, self.turns = num_qo_heads, num_kv_heads, pos_encoding_mode
        self.types = (q_data_type, kv_data_type)
        self.window, self.cap, self.scale, self.theta = window_left, logits_soft_cap or 0.0, sm_scale, rope_theta
        assert rope_scale == 1.0

    def turned(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Shapes: [n, heads, head_dim] at positions [n]."""
        if self.turns == "NONE":
            return rows
        assert self.turns == "ROPE_LLAMA"
        half = rows.shape[-1] // 2
        angles = positions[:, None] * self.theta ** (-np.arange(half) / half)
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = rows[..., :half], rows[..., half:]
        return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)

    def run(self, q: Tensor, paged_kv_cache: Tensor) -> Tensor:
        assert self.types == (q.dtype, paged_kv_cache.dtype)
        assert q.is_contiguous()
        result = np.zeros(q.shape)
        for request, (pages, length) in enumerate(zip(self.lists, self.lengths, strict=True)):
            # Every page of the list is read, whatever the window.
            kv = paged_kv_cache[torch.from_numpy(pages).long()].double().numpy()
            keys, values = (kv[:, part].reshape(-1, *kv.shape[3:])[:length] for part in (0, 1))
            where = np.arange(length)
            keys = self.turned(keys, where).repeat(self.heads // self.kv_heads, axis=1)
            asking = self.turned(q[request : request + 1].double().numpy(), where[-1:])[0]
            logits = np.einsum("hd,khd->hk", asking, keys) * self.scale
            logits = self.cap * np.tanh(logits / self.cap) if self.cap else logits
            seen = where >= length - 1 - self.window if self.window >= 0 else where >= 0
            logits, values = logits[:, seen], values[seen].repeat(self.heads // self.kv_heads, axis=1)
            weights = np.exp(logits - logits.max(1, keepdims=True))
            result[request] = np.einsum("hk,khd->hd", weights / weights.sum(1, keepdims=True), values)
        return torch.from_numpy(result).to(q.dtype)


class Module:
    """Stands where `flashinfer` stands."""

    def __init__(self) -> None:
        self.made: list[Wrapper] = []

    def BatchDecodeWithPagedKVCacheWrapper(self, *given: Any, **more: Any) -> Wrapper:
        self.made.append(Wrapper(*given, **more))
        return self.made[-1]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr("cyberkv.runtime.cuda.flashinfer_decode.WORKSPACE_BYTES", 64)
    return Module()


def decode(kernels: FlashInferDecode, made: Case, q: Tensor) -> Tensor:
    given = (
        each.cpu() for each in (q, made.kv, made.tables, made.lengths, made.bases, *tables_of_turns(made.attention))
    )
    return kernels.paged_decode(*given, made.attention)


@pytest.mark.parametrize(
    "change",
    [{}, {"window": 1}, {"window": 24}, {"softcap": 5.0}, {"rotary_dims": 0}, {"heads": 6, "page_size": 32}],
    ids=lambda change: next(iter(change), "plain"),
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_flashinfer_is_asked_for_what_the_kernels_compute(module: Module, change: dict[str, Any], dtype: str) -> None:
    a = replace(PLAIN, **{"dtype": dtype, **change})
    made = case(a, [40, 1, 16, 33], bases=[0, 5, 9, 100], wider=2)
    if a.window:
        made.tables[0, : (40 - a.window) // a.page_size] = 1 << 30  # behind the window, a row of somebody else
    q = made.ask(1)[:, 0]
    got = decode(FlashInferDecode(module, reference, THETA), made, q)
    assert distance(got, made.expected(q[:, None], [39, 0, 15, 32])[:, 0].cpu()) <= 1e-2


@pytest.mark.parametrize("wrong", [{"scale": 0.2}, {"window": 5}, {"softcap": 1.0}, {"rotary_dims": 0}], ids=str)
def test_control_each_field_is_passed_on(module: Module, wrong: dict[str, Any]) -> None:
    made = case(PLAIN, [40])
    other, q = replace(made, attention=replace(PLAIN, **wrong)), made.ask(1)[:, 0]
    one, another = (decode(FlashInferDecode(module, reference, THETA), each, q) for each in (made, other))
    assert distance(another, one) > 1e-2


def test_control_another_theta_is_another_rotation(module: Module) -> None:
    made = case(PLAIN, [40])
    q = made.ask(1)[:, 0]
    one, other = (decode(FlashInferDecode(module, reference, theta), made, q) for theta in (THETA, 500.0))
    assert distance(one, other) > 1e-2


def test_it_plans_once_for_all_layers_and_again_for_other_numbers(module: Module) -> None:
    made = case(PLAIN, [40, 20])
    windowed = replace(made, attention=replace(PLAIN, window=24))
    kernels, q = FlashInferDecode(module, reference, THETA), made.ask(1)[:, 0]
    tables, lengths = made.tables.cpu(), made.lengths.cpu()

    def layer(made: Case) -> Tensor:
        turns = (table.cpu() for table in tables_of_turns(made.attention))
        return kernels.paged_decode(q.cpu(), made.kv.cpu(), tables, lengths, made.bases.cpu(), *turns, made.attention)

    before = layer(made)
    for _ in range(3):
        layer(windowed)
        layer(made)
    assert [wrapper.plans for wrapper in module.made] == [1, 1]
    lengths[0] = 30  # in place: the same tensor, another step
    assert distance(layer(made), before) > 1e-2
    lengths = lengths.clone()
    layer(made)
    assert [wrapper.plans for wrapper in module.made] == [3, 1]


def test_a_list_of_pages_has_what_the_last_row_sees() -> None:
    for size, window in product((16, 32), (None, 1, 17, 40)):
        a = replace(PLAIN, page_size=size, window=window)
        lengths = torch.randint(1, 200, (9,), generator=torch.Generator().manual_seed(size))
        tables = torch.arange(9 * 20).view(9, 20)
        pages = list_pages(tables, lengths, a)
        for request, length in enumerate(lengths.tolist()):
            listed = pages.indices[pages.indptr[request] : pages.indptr[request + 1]].tolist()
            seen = range(0 if window is None else max(0, length - window), length)
            assert listed == sorted({int(tables[request, position // size]) for position in seen})
            assert pages.last_page_len[request] == length - (length - 1) // size * size


def test_what_does_not_fit_is_never_planned(module: Module) -> None:
    made = case(PLAIN, [40])
    with pytest.raises(UnsupportedModel) as caught:
        decode(FlashInferDecode(module, reference, THETA), made, made.ask(1)[:, 0, :3])
    assert caught.value.data["field"] == "q.shape"
    assert not module.made


def test_everything_but_decoding_is_by_the_fixed_kernels(module: Module) -> None:
    launch, kernels = kernels_of("triton", THETA), FlashInferDecode(module, kernels_of("triton", THETA), THETA)
    for name in ("append_rows", "paged_prefill", "linear", "rms_norm", "silu_mul"):
        assert getattr(kernels, name) is getattr(launch, name)
    assert kernels.paged_decode is not launch.paged_decode
