"""GGUF files: conversion equal to the source they were made from, and bounded reading of hostile ones."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from cyberkv.cybergraph.errors import Corrupt, CyberKVError, UnsupportedFormat, UnsupportedModel
from cyberkv.runtime.models.config import DecoderConfig
from cyberkv.runtime.models.gguf import convert
from cyberkv.runtime.models.gguf_file import GgufFile
from cyberkv.runtime.models.registry import smollm2_source
from cyberkv.runtime.models.tokenizer import TextCodec
from tests.numerics.tiny import SPECIAL_TOKENS, tiny_model
from tests.unit.gguf_files import MERGES, WORDS, Change, write_gguf

FAMILIES = {"llama": "llama", "llama-untied": "llama", "llama-linear": "llama", "llama-llama3": "llama",
            "qwen2": "qwen2", "qwen3": "qwen3", "qwen3-yarn": "qwen3"}  # fmt: skip


def expected_tokenizer(pre: list[pre_tokenizers.PreTokenizer]) -> Tokenizer:
    vocab = {word: at for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split()) for merge in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pre)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    changes = {"llama-llama3": {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }, "max_position_embeddings": 16_384}, "qwen3-yarn": {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 512,
        "beta_fast": 8.0, "beta_slow": 2.0,
    }}}  # fmt: skip
    return {family: tiny_model(family, folder / family, **changes.get(family, {})) for family in FAMILIES}


@pytest.fixture(scope="module")
def small(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a sound GGUF file to damage."""
    return write_gguf(sources["llama"], tmp_path_factory.mktemp("small") / "m.gguf", "llama", quantised=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_conversion_gives_the_source_back(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources[family]
    path = write_gguf(source, tmp_path / "model.gguf", FAMILIES[family])
    convert(path, tmp_path / "out")
    expected, got = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], expected[name]) for name in expected)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out")]
    ours, theirs = (DecoderConfig.from_hf(config) for config in configs)
    assert repr(ours).replace(repr(ours.norm_eps), "") == repr(theirs).replace(repr(theirs.norm_eps), "")
    assert np.float32(ours.norm_eps) == np.float32(theirs.norm_eps)  # GGUF keeps it in 32 bits
    codec = load_text(tmp_path / "out")
    assert codec.eos_ids == {257}
    assert codec.render([{"role": "user", "content": "Hi"}]) == "Hi"


def load_text(folder: Path) -> TextCodec:
    codec = TextCodec.load(folder)
    assert codec is not None
    return codec


def test_converted_tensors_lie_aligned(sources: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(sources["qwen2"], tmp_path / "m.gguf", "qwen2")
    convert(path, tmp_path / "out")
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert (8 + int.from_bytes(data[:8], "little")) % 64 == 0


TEXTS = (
    "the then  the\n the 12345 a  7\n\n 8", "It's don't I'LL", "naïve café 世界 🎉\u200d",
    "<|user|>the<|end|>",
    "\t\ttabs  and   spaces   ", "x = foo(bar, 42) # ok", "1,234.5e-6 ½ ②",
)  # fmt: skip
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)
UNSPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def regex(numbers: str) -> pre_tokenizers.PreTokenizer:
    """The published expression of Llama 3 and Qwen 2, which differ in how they cut numbers."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS"
    others = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return pre_tokenizers.Split(Regex(words.replace("NUMBERS", numbers) + others), "isolated")


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", [PLAIN]),
        ("smollm", [pre_tokenizers.Digits(individual_digits=True), PLAIN]),
        ("smaug-bpe", [regex(r"\p{N}{1,3}"), UNSPLIT]),
        ("llama-bpe", [regex(r"\p{N}{1,3}"), UNSPLIT]),
        ("qwen2", [regex(r"\p{N}"), UNSPLIT]),
    ],
)
def test_text_is_split_as_the_file_says(
    pre: str, expected: list[pre_tokenizers.PreTokenizer], sources: dict[str, Path], tmp_path: Path
) -> None:
    def name_it(writer: gguf.GGUFWriter, _: dict[str, Any]) -> None:
        writer.kv_data[0]["tokenizer.ggml.pre"].value = pre

    convert(write_gguf(sources["llama"], tmp_path / "m.gguf", "llama", change=name_it), tmp_path / "out")
    codec, reference = load_text(tmp_path / "out"), expected_tokenizer(expected)
    for text in TEXTS:
        assert codec.encode(text, special=False) == reference.encode(text).ids
        assert codec.decode(codec.encode(text, special=False)) == text
    assert codec.encode("a")[0] == (256 if pre == "llama-bpe" else codec.encode("a", special=False)[0])


def test_splits_differ() -> None:
    """The control of the test above: the texts tell the rules apart."""
    rules = [[PLAIN], [pre_tokenizers.Digits(individual_digits=True), PLAIN], [regex(r"\p{N}{1,3}"), UNSPLIT]]
    assert len({tuple(tuple(expected_tokenizer(rule).encode(text).ids) for text in TEXTS) for rule in rules}) == 3


def test_sentencepiece_vocabulary(sources: dict[str, Path], tmp_path: Path) -> None:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{at:02X}>" for at in range(256)),
        "▁",
        "t",
        "h",
        "e",
        "▁t",
        "he",
        "▁the",
    ]
    scores = [0.0] * 259 + [-9.0] * 4 + [-1.0, -2.0, -3.0]

    def pieces_instead(writer: gguf.GGUFWriter, _: dict[str, Any]) -> None:
        for key in [key for key in writer.kv_data[0] if key.startswith("tokenizer.")]:
            del writer.kv_data[0][key]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores(scores)
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 7)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    convert(write_gguf(sources["llama"], tmp_path / "m.gguf", "llama", change=pieces_instead), tmp_path / "out")
    codec = load_text(tmp_path / "out")
    the = pieces.index("▁the")
    assert codec.encode("the the") == [1, the, the]
    assert codec.encode("hé", special=False) == [pieces.index("▁"), pieces.index("h"), 3 + 0xC3, 3 + 0xA9]
    assert codec.decode(codec.encode("the hé the"), special=False) == "the hé the"


def test_quantised_tensors_are_dequantised(small: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    convert(small, tmp_path / "out")
    expected = load_file(sources["llama"] / "model.safetensors")
    got = load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    kind = gguf.GGMLQuantizationType.Q8_0
    assert np.array_equal(got[name], gguf.dequantize(gguf.quantize(expected[name], kind), kind))
    for name in expected:
        assert np.allclose(got[name], expected[name], atol=0.05)
    assert not np.array_equal(got[name], np.zeros_like(got[name]))


def set_value(key: str, value: object) -> Change:
    def change(writer: gguf.GGUFWriter, _: dict[str, Any]) -> None:
        writer.kv_data[0][key].value = value

    return change


def add(key: str, value: float) -> Change:
    def change(writer: gguf.GGUFWriter, _: dict[str, Any]) -> None:
        writer.add_float32(key, value)

    return change


def add_tensor(name: str, values: list[float]) -> Change:
    def change(_: gguf.GGUFWriter, tensors: dict[str, Any]) -> None:
        tensors[name] = np.array(values, np.float32)

    return change


def yarn_beside_factors(writer: gguf.GGUFWriter, tensors: dict[str, Any]) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    tensors["rope_freqs.weight"] = np.ones(8, np.float32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_value("general.architecture", "gemma3"), "general.architecture"),
        (set_value("tokenizer.ggml.pre", "viking"), "tokenizer.ggml.pre"),
        (set_value("tokenizer.ggml.model", "t5"), "tokenizer.ggml.model"),
        (add("llama.logit_scale", 0.5), "llama.logit_scale"),
        (add("llama.attention.clamp_kqv", 8.0), "llama.attention.clamp_kqv"),
        (add("llama.expert_count", 8.0), "llama.expert_count"),
        (set_value("llama.rope.dimension_count", 8), "llama.rope.dimension_count"),
        (set_value("llama.attention.head_count", 3), "num_key_value_heads"),
        (set_value("llama.embedding_length", 128), r"needs \[128\]"),
        (set_value("llama.block_count", 2), "blk.2"),
        (add_tensor("rope_freqs.weight", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), "rope_freqs.weight"),
        (add_tensor("rope_freqs.weight", [1.0]), "rope_freqs.weight"),
        (yarn_beside_factors, "llama.rope.scaling.type"),
        (add("llama.rope.scaling.attn_factor", 1.5), "llama.rope.scaling.attn_factor"),
        (add("llama.rope.scaling.yarn_ext_factor", 1.0), "llama.rope.scaling.yarn_ext_factor"),
        (add("llama.rope.scaling.yarn_attn_factor", 1.0), "llama.rope.scaling.yarn_attn_factor"),
        (add("llama.rope.scaling.yarn_log_multiplier", 0.1), "llama.rope.scaling.yarn_log_multiplier"),
        (add_tensor("blk.0.attn_q.bias", [0.0] * 64), "blk.0.attn_q.bias"),
        (add_tensor("blk.0.ffn_gate_inp.weight", [0.0] * 64), "blk.0.ffn_gate_inp.weight"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(
    change: Change, named: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    path = write_gguf(sources["llama"], tmp_path / "m.gguf", "llama", change=change)
    with pytest.raises(UnsupportedModel, match=named):
        convert(path, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == [path]


def test_missing_tensor_is_named(sources: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(sources["llama"], tmp_path / "m.gguf", "llama", change=set_value("llama.block_count", 4))
    with pytest.raises(Corrupt, match=r"blk\.3"):
        convert(path, tmp_path / "out")


def header_bytes(path: Path) -> int:
    return min(info.start for info in GgufFile(path).tensors.values())


def test_every_truncation_is_a_typed_error(small: Path, tmp_path: Path) -> None:
    data, end = small.read_bytes(), header_bytes(small)
    GgufFile(small)
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, 2000, 7), *range(2000, end, 101), len(data) - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(Corrupt):
            GgufFile(cut)
    cut.write_bytes(b"")
    with pytest.raises(Corrupt):
        GgufFile(cut)


@given(data=st.data())
def test_damage_gives_a_typed_error_or_a_model(
    data: st.DataObject, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_bytes(small) - 1))
        content[at] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "m.gguf").write_bytes(content)
    try:
        convert(folder / "m.gguf", folder / "out")
    except CyberKVError:
        assert not (folder / "out").exists()
    else:
        assert (folder / "out" / "config.json").exists()
    assert not list(folder.glob(".part-*"))
    shutil.rmtree(folder)


def number(value: int, size_bytes: int = 8) -> bytes:
    return value.to_bytes(size_bytes, "little")


def text(value: bytes) -> bytes:
    return number(len(value)) + value


HEAD = b"GGUF" + number(3, 4)


@pytest.mark.parametrize(
    "content",
    [
        HEAD + number(1 << 60) + number(0),
        HEAD + number(0) + number(1 << 60),
        HEAD + number(0) + number(1) + number(1 << 60),
        HEAD + number(0) + number(1) + text(b"k") + number(9, 4) + number(0, 4) + number(1 << 60),
        HEAD + number(0) + number(1) + text(b"k") + number(9, 4) + number(8, 4) + number(1 << 21),
        HEAD + number(0) + number(1) + text(b"k") + (number(9, 4) + number(1, 4) * 0) * 50,
        HEAD + number(0) + number(1) + text(b"k") + number(77, 4),
        HEAD + number(0) + number(1) + text(b"\xff") + number(0, 4) + b"\0",
        HEAD + number(0) + number(1) + text(b"general.alignment") + number(4, 4) + number(0, 4),
        HEAD + number(1) + number(0) + text(b"t") + number(5, 4) + number(1) * 5 + number(0, 4) + number(0),
        HEAD + number(1) + number(0) + text(b"t") + number(1, 4) + number(0) + number(0, 4) + number(0),
        HEAD + number(1) + number(0) + text(b"t") + number(1, 4) + number(1 << 62) + number(0, 4) + number(0),
        HEAD + number(1) + number(0) + text(b"t") + number(1, 4) + number(1) + number(0, 4) + number(1 << 60),
    ],
)  # fmt: skip
def test_lying_counts_are_typed_errors(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(Corrupt):
        GgufFile(path)


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    infos = b"".join(text(str(at).encode()) + number(1, 4) + number(16) + number(0, 4) + number(0) for at in range(100))
    path.write_bytes(HEAD + number(100) + number(0) + infos + bytes(96))
    with pytest.raises(Corrupt, match="overlap"):
        GgufFile(path)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + number(1, 4) + number(0) * 2,
        b"GGUF" + b"\0\0\0\x03" + number(0) * 2,
        HEAD + number(1) + number(0) + text(b"t") + number(1, 4) + number(1) + number(200, 4) + number(0),
    ],
)
def test_other_versions_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormat):
        GgufFile(path)


def test_conversion_reports_progress_and_leaves_no_part(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(small, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    convert(small, tmp_path / "out")  # another process was faster: not an error
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_the_real_model_is_converted_as_transformers_does(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    path = smollm2_source()
    convert(path, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True), dtype="float32"
    ).state_dict()
    ours = load_file(tmp_path / "out" / "model.safetensors")
    assert theirs.keys() - ours.keys() == {"lm_head.weight"}
    assert all(np.array_equal(ours[name], theirs[name].numpy()) for name in ours)
    codec = load_text(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    corpus = [*TEXTS, *(path.read_text() for path in sorted(Path(__file__).parents[2].glob("docs/*.md")))]
    for passage in corpus:
        text_of_one_kind = re.sub(r"\s+(?=\d)|[½②]", " ", passage)  # see below
        assert codec.encode(text_of_one_kind) == tokenizer(text_of_one_kind)["input_ids"]
    # The file says `smollm`: numbers one by one, before words. transformers 5.24 splits by GPT-2's rule here.
    assert codec.encode("a  7") == [81, 256, 39] != tokenizer("a  7")["input_ids"]
    assert codec.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    messages = [{"role": "user", "content": "Hi"}]
    assert codec.render(messages) == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
