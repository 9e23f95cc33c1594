"""What is refused is refused by name, before anything is launched."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.errors import UnsupportedModel
from cyberkv.runtime.attention.panels import PANEL_KEYS
from cyberkv.runtime.cuda.kernels import checks, launch, rowwise, tiles
from cyberkv.runtime.cuda.support import HEAD_DIMS, PAGE_SIZES, Attention, require_supported, unsupported
from tests.gpu.cases import DEVICE, attention, case, ints

GOOD = attention(8, 2, 128, 16, "f16")
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("head_dim", {"head_dim": 72, "rotary_dims": 72}),
    ("head_dim", {"head_dim": 512}),
    ("block_size", {"page_size": 8}),
    ("block_size", {"page_size": 48}),
    ("num_kv_heads", {"kv_heads": 0}),
    ("num_heads", {"heads": 9}),
    ("num_heads", {"heads": 0}),
    ("num_heads", {"heads": 130, "kv_heads": 2}),
    ("kv_dtype", {"dtype": "f64"}),
    ("kv_quant_scheme", {"scheme": "int8/row/f32"}),
    ("rotary_dims", {"rotary_dims": 33}),
    ("rotary_dims", {"rotary_dims": 130}),
    ("window", {"window": 0}),
    ("softcap", {"softcap": 0.0}),
    ("softcap", {"softcap": float("nan")}),
    ("scale", {"scale": float("inf")}),
]


@pytest.mark.parametrize(("field", "wrong"), WRONG, ids=[str(wrong) for _, wrong in WRONG])
def test_each_field_is_refused_by_name(field: str, wrong: dict[str, Any]) -> None:
    other = replace(GOOD, **wrong)
    refusal = unsupported(other)
    assert refusal is not None
    assert refusal.field == field
    with pytest.raises(UnsupportedModel) as caught:
        require_supported(other)
    assert caught.value.data["field"] == field
    assert caught.value.data["got"] is refusal.got
    assert str(refusal.got) in caught.value.message


def test_control_everything_else_is_supported_and_has_tiles() -> None:
    for head_dim in HEAD_DIMS:
        for page_size in PAGE_SIZES:
            for dtype in ("f32", "f16", "bf16"):
                for heads in (1, 3, 8, 33, 64):
                    a = attention(heads, 1, head_dim, page_size, dtype)
                    assert unsupported(a) is None
                    assert PANEL_KEYS % tiles.tile_keys(a) == 0
                    assert tiles.tile_rows(a) >= 1
                    assert tiles.prefill_cut(a).lanes >= heads


@pytest.mark.parametrize(("capability", "dtype", "field"), [(70, "f16", "capability"), (75, "bf16", "kv_dtype")])
def test_a_device_may_be_too_old(capability: int, dtype: str, field: str) -> None:
    a = replace(GOOD, dtype=dtype)
    refusal = unsupported(a, capability=capability)
    assert refusal is not None
    assert refusal.field == field
    assert unsupported(a, capability=80) is None


class Launched(Exception):
    pass


class Trap:
    """Stands where kernels stand."""

    def __getitem__(self, grid: object) -> None:
        raise Launched


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("decode_panels", "merge_panels", "prefill_tiles", "append_slots", "copy_words"):
        monkeypatch.setattr(launch, kernel, Trap())
    for kernel in ("multiply_rows", "normalise_rows", "multiply_silu"):
        monkeypatch.setattr(rowwise, kernel, Trap())


def call(name: str, a: Attention = GOOD, **changed: Any) -> None:
    """Call one function with tensors that fit `GOOD`, but for what is changed."""
    made = case(GOOD, [20])
    row = made.ask(1)
    k = row[0, :, : GOOD.kv_heads]
    table = torch.zeros(64, GOOD.rotary_dims // 2, device=row.device)
    shared = {"kv": made.kv, "tables": made.tables, "attention": a}
    turning = {"lengths": made.lengths, "bases": made.bases, "cos": table, "sin": table}
    given: dict[str, dict[str, Any]] = {
        "paged_decode": {"q": row[:, 0], **shared, **turning},
        "paged_prefill": {"q": row, "starts": ints([0]), **shared, **turning},
        "append_rows": {"k": k, "v": k, "requests": ints([0]), "positions": ints([0]), **shared},
        "gather_rows": {"rows": made.pool, "indices": ints([0]), "staging": made.pool[:1].clone()},
        "scatter_rows": {"rows": made.pool, "indices": ints([0]), "staging": made.pool[:1].clone()},
        "linear": {"x": row[0, 0], "weight": row[0, 0], "bias": row[0, 0, :, 0].clone()},
        "rms_norm": {"x": row[0], "weight": row[0, 0], "eps": 1e-5},
        "silu_mul": {"gate_up": row[0, 0]},
    }
    getattr(launch, name)(**{**given[name], **changed})


ATTENDING = ("paged_decode", "paged_prefill", "append_rows")


@pytest.mark.parametrize("name", launch.__all__)
def test_control_what_fits_is_launched(trap: None, name: str) -> None:
    with pytest.raises(Launched):
        call(name)


@pytest.mark.parametrize(("field", "wrong"), WRONG, ids=[str(wrong) for _, wrong in WRONG])
@pytest.mark.parametrize("name", ATTENDING)
def test_what_is_refused_is_never_launched(trap: None, name: str, field: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        call(name, replace(GOOD, **wrong))
    assert caught.value.data["field"] == field


half = torch.float16
with DEVICE:  # a copy to it would lie otherwise
    TENSORS: list[tuple[str, str, dict[str, torch.Tensor]]] = [
        ("paged_decode", "q.shape", {"q": torch.zeros(1, 7, 128, dtype=half)}),
        ("paged_decode", "q.dtype", {"q": torch.zeros(1, 8, 128)}),
        ("paged_decode", "q.stride", {"q": torch.zeros(1, 8, 256, dtype=half)[..., ::2]}),
        ("paged_decode", "kv.shape", {"kv": torch.zeros(4, 2, 16, 2, 64, dtype=half)}),
        ("paged_decode", "kv.shape", {"kv": torch.zeros(4, 2, 16, 256, dtype=half)}),
        ("paged_decode", "tables.dtype", {"tables": torch.zeros(1, 2, dtype=torch.int64)}),
        ("paged_decode", "tables.shape", {"tables": torch.zeros(2, 2, dtype=torch.int32)}),
        ("paged_decode", "lengths.shape", {"lengths": torch.zeros(2, dtype=torch.int32)}),
        ("paged_decode", "bases.dtype", {"bases": torch.zeros(1)}),
        ("paged_decode", "cos.shape", {"cos": torch.zeros(64, 128)}),
        ("paged_decode", "sin.dtype", {"sin": torch.zeros(64, 64, dtype=half)}),
        ("paged_decode", "sin.stride", {"sin": torch.zeros(64, 128)[:, :64]}),
        ("paged_prefill", "q.shape", {"q": torch.zeros(1, 8, 128, dtype=half)}),
        ("paged_prefill", "q.shape", {"q": torch.zeros(1, 1, 8, 128, dtype=half).expand(1, 1 << 21, 8, 128)}),
        ("paged_prefill", "starts.shape", {"starts": torch.zeros(2, dtype=torch.int32)}),
        ("append_rows", "k.shape", {"k": torch.zeros(1, 8, 128, dtype=half)}),
        ("append_rows", "v.shape", {"v": torch.zeros(2, 2, 128, dtype=half)}),
        ("append_rows", "positions.dtype", {"positions": torch.zeros(1, dtype=torch.int64)}),
        ("gather_rows", "staging.shape", {"staging": torch.zeros(1, 2, 2, 16, 2, 64, dtype=half)}),
        ("gather_rows", "staging.dtype", {"staging": torch.zeros(1, 2, 2, 16, 2, 128)}),
        ("gather_rows", "indices.dtype", {"indices": torch.zeros(1, dtype=torch.int64)}),
        ("scatter_rows", "rows.stride", {"rows": torch.zeros(5, 2, 2, 16, 2, 256, dtype=half)[..., ::2]}),
        ("scatter_rows", "rows.stride",
         {"rows": torch.zeros(2 * 16384 + 1, dtype=half)[1:].view(2, 2, 2, 16, 2, 128)}),
        ("linear", "x.shape", {"x": torch.zeros(3, 64, dtype=half)}),
        ("linear", "x.shape", {"x": torch.zeros(128, dtype=half)}),
        ("linear", "x.stride", {"x": torch.zeros(3, 256, dtype=half)[:, ::2]}),
        ("linear", "dtype", {"x": torch.zeros(3, 128, dtype=torch.float64)}),
        ("linear", "weight.shape", {"weight": torch.zeros(2, 8, 128, dtype=half)}),
        ("linear", "weight.shape", {"weight": torch.zeros(0, 128, dtype=half)}),
        ("linear", "weight.dtype", {"weight": torch.zeros(8, 128)}),
        ("linear", "weight.stride", {"weight": torch.zeros(8, 256, dtype=half)[:, :128]}),
        ("linear", "bias.shape", {"bias": torch.zeros(7, dtype=half)}),
        ("linear", "bias.dtype", {"bias": torch.zeros(8)}),
        ("rms_norm", "x.shape", {"x": torch.zeros(1, 1, 8, 128, dtype=half)}),
        ("rms_norm", "x.shape", {"x": torch.zeros(1, checks.MOST_COLUMNS + 1, dtype=half)}),
        ("rms_norm", "x.stride", {"x": torch.zeros(1, 8, 256, dtype=half)[..., ::2]}),
        ("rms_norm", "dtype", {"x": torch.zeros(1, 8, 128, dtype=torch.int32)}),
        ("rms_norm", "weight.shape", {"weight": torch.zeros(7, 128, dtype=half)}),
        ("rms_norm", "weight.shape", {"weight": torch.zeros(64, dtype=half)}),
        ("rms_norm", "weight.dtype", {"weight": torch.zeros(128)}),
        ("silu_mul", "gate_up.shape", {"gate_up": torch.zeros(3, 7, dtype=half)}),
        ("silu_mul", "gate_up.shape", {"gate_up": torch.zeros(3, 0, dtype=half)}),
        ("silu_mul", "gate_up.stride", {"gate_up": torch.zeros(3, 16, dtype=half)[:, ::2]}),
        ("silu_mul", "dtype", {"gate_up": torch.zeros(3, 8, dtype=torch.int64)}),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "wrong"), TENSORS, ids=[f"{name}-{field}" for name, field, _ in TENSORS])
def test_tensors_that_do_not_fit_are_never_launched(
    trap: None, name: str, field: str, wrong: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        call(name, **wrong)
    assert caught.value.data["field"] == field
