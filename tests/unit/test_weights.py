"""Weights: the same digest however they are cut into files, and no silent stand-in for what a file lacks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cyberkv.cybergraph.errors import Corrupt, NotFound, UnsupportedModel
from cyberkv.runtime.models.config import DecoderConfig
from cyberkv.runtime.models.weights import expected_tensors, load_weights, weights_digest
from tests.numerics.tiny import FAMILIES, tiny_model

FILE = "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("weights")
    return {family: tiny_model(family, folder / family) for family in FAMILIES}


@pytest.fixture
def changed(folders: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """Give a copy of a model whose tensors a function has changed in place."""

    def copy(change: Callable[[dict[str, Tensor]], object], family: str = "llama") -> Path:
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders[family], folder)
        tensors = load_file(folder / FILE)
        change(tensors)
        save_file(tensors, folder / FILE)
        return folder

    return copy


def config_of(folder: Path) -> DecoderConfig:
    return DecoderConfig.from_hf(json.loads((folder / "config.json").read_text()))


def digest_of(folder: Path) -> str:
    return weights_digest(folder, config_of(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_the_stored_ones(family: str, folders: dict[str, Path]) -> None:
    folder = folders[family]
    weights, digest = load_weights(folder, config_of(folder), "f32")
    stored = load_file(folder / FILE)
    assert weights.keys() == stored.keys() == expected_tensors(config_of(folder)).keys()
    assert all(torch.equal(weights[name], stored[name]) for name in stored)
    assert digest == digest_of(folder)
    assert digest.startswith("blake3:")


def test_equal_weights_have_equal_digests_and_others_not(folders: dict[str, Path], tmp_path: Path) -> None:
    digests = [digest_of(tiny_model("llama", tmp_path / str(at), seed=seed)) for at, seed in enumerate((0, 0, 1))]
    assert digests[0] == digests[1] == digest_of(folders["llama"])
    assert digests[2] != digests[0]


def test_digest_is_free_of_sharding_and_metadata(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["llama"]
    config, tensors = config_of(folder), load_file(folder / FILE)
    names = sorted(tensors, reverse=True)
    shards = {f"part-{at}.safetensors": names[at::3] for at in range(3)}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file, metadata={"note": "x" * 33})
    assert weights_digest(tmp_path, config) == digest_of(folder)

    weight_map = {name: file for file, part in shards.items() for name in part}
    (tmp_path / f"{FILE}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    shutil.copy(folder / FILE, tmp_path / "stray.safetensors")  # not in the index, so not read
    assert weights_digest(tmp_path, config) == digest_of(folder)


def test_every_change_of_a_weight_changes_the_digest(folders: dict[str, Path], changed: Callable[..., Path]) -> None:
    digest = digest_of(folders["llama"])
    assert digest_of(changed(lambda tensors: None)) == digest
    for name in load_file(folders["llama"] / FILE):

        def flip(tensors: dict[str, Tensor], name: str = name) -> None:
            tensors[name].view(-1).view(torch.int32)[-1] ^= 1

        assert digest_of(changed(flip)) != digest


def test_stored_dtype_is_part_of_the_digest(folders: dict[str, Path], changed: Callable[..., Path]) -> None:
    def zeros(dtype: torch.dtype) -> Callable[[dict[str, Tensor]], None]:
        def fill(tensors: dict[str, Tensor]) -> None:
            tensors["model.norm.weight"] = torch.zeros(64, dtype=dtype)

        return fill

    assert digest_of(changed(zeros(torch.bfloat16))) != digest_of(changed(zeros(torch.float16)))


def test_conversion_to_another_dtype(folders: dict[str, Path]) -> None:
    folder = folders["qwen2"]
    wide, digest = load_weights(folder, config_of(folder), "f32")
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        narrow, same_digest = load_weights(folder, config_of(folder), name)  # type: ignore[arg-type]
        assert same_digest == digest
        assert all(torch.equal(narrow[key], wide[key].to(dtype)) for key in wide)


def test_weights_are_aligned_wherever_they_lie_in_the_file(folders: dict[str, Path], tmp_path: Path) -> None:
    """One row times a matrix rounds differently at addresses off 16 bytes: that must not reach the bytes."""
    folder = folders["llama"]
    config, tensors = config_of(folder), load_file(folder / FILE)
    row, answers, places = torch.linspace(-1, 1, 64), set(), set()
    for pad in range(0, 64, 8):
        save_file(tensors, tmp_path / FILE, metadata={"pad": " " * pad})
        places.add(int.from_bytes((tmp_path / FILE).read_bytes()[:8], "little") % 64)
        weights, _ = load_weights(tmp_path, config, "f32")
        assert all(weight.data_ptr() % 64 == 0 for weight in weights.values())
        product = torch.nn.functional.linear(row[None], weights["model.layers.0.mlp.gate_proj.weight"])
        answers.add(product.numpy().tobytes())
    assert len(places) > 4
    assert len(answers) == 1


def test_missing_tensor_is_named(changed: Callable[..., Path]) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    folder = changed(lambda tensors: tensors.pop(name))
    with pytest.raises(Corrupt, match=name) as caught:
        digest_of(folder)
    assert caught.value.data["tensor"] == name


def test_wrong_shape_is_named_with_both_shapes(changed: Callable[..., Path]) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    folder = changed(lambda tensors: tensors.update({name: torch.zeros(48, 64)}))
    with pytest.raises(UnsupportedModel) as caught:
        digest_of(folder)
    assert (caught.value.data["tensor"], caught.value.data["expected"]) == (name, [32, 64])
    assert caught.value.data["got"] == [48, 64]


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.3.mlp.up_proj.weight", "x"])
def test_unexpected_tensor_is_refused(name: str, changed: Callable[..., Path]) -> None:
    folder = changed(lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(UnsupportedModel) as caught:
        digest_of(folder)
    assert caught.value.data["tensor"] == name


def test_old_rotation_tables_are_ignored(folders: dict[str, Path], changed: Callable[..., Path]) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert digest_of(changed(lambda tensors: tensors.update({name: torch.ones(8)}))) == digest_of(folders["llama"])


def test_a_head_beside_tied_embeddings_must_be_the_same(folders: dict[str, Path], changed: Callable[..., Path]) -> None:
    def add_head(scale: float) -> Callable[[dict[str, Tensor]], None]:
        def add(tensors: dict[str, Tensor]) -> None:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * scale

        return add

    assert digest_of(changed(add_head(1.0))) == digest_of(folders["llama"])
    with pytest.raises(UnsupportedModel, match="lm_head"):
        digest_of(changed(add_head(2.0)))


def test_quantised_tensors_are_refused(changed: Callable[..., Path]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    folder = changed(lambda tensors: tensors.update({name: torch.zeros(96, 64, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModel, match="int8"):
        digest_of(folder)


def test_damaged_files_are_typed_errors(folders: dict[str, Path], tmp_path: Path) -> None:
    config = config_of(folders["llama"])
    with pytest.raises(NotFound):
        weights_digest(tmp_path, config)
    data = (folders["llama"] / FILE).read_bytes()
    lies = [data[:cut] for cut in (0, 4, 8, 100, 2000, len(data) - 1)]
    lies += [data + b"x", b"\xff" * 8 + data[8:], data[:8] + b"{" * 2000 + data[2008:]]
    for lie in lies:
        (tmp_path / FILE).write_bytes(lie)
        with pytest.raises(Corrupt) as caught:
            weights_digest(tmp_path, config)
        assert caught.value.data["path"] == str(tmp_path / FILE)


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{",
        "{}",
        '{"weight_map": 1}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "gone.safetensors"}}',
    ],
)
def test_damaged_index_is_a_typed_error(index: str, folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / f"{FILE}.index.json").write_text(index)
    with pytest.raises(Corrupt):
        weights_digest(tmp_path, config_of(folders["llama"]))


def test_an_index_cannot_lead_out_of_the_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    tensors = load_file(folders["llama"] / FILE)
    index = json.dumps({"weight_map": dict.fromkeys(tensors, f"../{FILE}")})
    (inner / f"{FILE}.index.json").write_text(index)
    shutil.copy(folders["llama"] / FILE, tmp_path / FILE)
    with pytest.raises(Corrupt, match="not a readable"):
        weights_digest(inner, config_of(folders["llama"]))


def test_a_tensor_in_two_files_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(folders["llama"] / FILE, tmp_path / f"{name}.safetensors")
    with pytest.raises(Corrupt, match="two files"):
        weights_digest(tmp_path, config_of(folders["llama"]))


def test_an_adapter_beside_the_weights_is_refused(changed: Callable[..., Path]) -> None:
    folder = changed(lambda tensors: None)
    digest_of(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="adapter"):
        digest_of(folder)
