"""Whether a model is computed on a device: known from shapes and from the driver, before anything is loaded."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.errors import NotFound, UnsupportedModel
from cyberkv.runtime.cuda import choice
from cyberkv.runtime.cuda.choice import Seen, look, require_on_device
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.models.config import DecoderConfig, LayerKind

CONFIG = DecoderConfig(
    "LlamaForCausalLM", 2, 256, 512, 4, 2, 64, 300, 1e-5, 10_000.0, (), 64, (LayerKind(), LayerKind(window=8)), False,
    False, True, 512,
)  # fmt: skip
GEOMETRY = Geometry(2, 2, 64, block_size=16, layers_per_leaf=2, dtype="bf16")
SEEN = Seen("a device", capability=90, memory_bytes=1 << 30)


def test_a_shape_that_the_kernels_take_is_computed() -> None:
    require_on_device(CONFIG, GEOMETRY, SEEN)
    for dtype in ("f32", "f16"):
        require_on_device(CONFIG, replace(GEOMETRY, dtype=dtype), SEEN)


@pytest.mark.parametrize(
    ("field", "got", "changes", "capability"),
    [
        ("kv_quant_scheme", "int8/row/f32", {"scheme": "int8/row/f32", "dtype": "f32"}, 90),
        ("block_size", 8, {"block_size": 8}, 90),
        ("head_dim", 72, {"head_dim": 72}, 90),
        ("kv_dtype", "bf16", {}, 75),
        ("capability", 70, {"dtype": "f16"}, 70),
    ],
)
def test_any_other_is_refused_by_field_and_value(
    field: str, got: object, changes: dict[str, Any], capability: int
) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        require_on_device(CONFIG, replace(GEOMETRY, **changes), replace(SEEN, capability=capability))
    assert (refused.value.data["field"], refused.value.data["got"]) == (field, got)


@pytest.mark.parametrize(
    ("built", "available", "packages", "reason"),
    [
        ({"cuda": None, "hip": "7.0"}, True, True, "ROCm"),
        ({"cuda": None, "hip": None}, False, True, "without CUDA"),
        ({"cuda": "13.0", "hip": None}, False, True, "torch sees none"),
        ({"cuda": "13.0", "hip": None}, True, False, "triton is not installed"),
    ],
)
def test_why_there_is_none_is_said(
    built: dict[str, str | None], available: bool, packages: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in built.items():
        monkeypatch.setattr(torch.version, name, version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(choice, "find_spec", lambda _: packages or None)
    with pytest.raises(NotFound, match=reason):
        look()
