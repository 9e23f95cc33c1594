"""Convert a GGUF file, once, into a folder that loads like any other: safetensors, config, tokenizer."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from ...cybergraph.errors import Corrupt, TierFull, UnsupportedModel
from ...cybergraph.private import PRIVATE_FILE, make_private_folder
from .config import DecoderConfig
from .gguf_config import ROPE_FACTORS, config_from_gguf
from .gguf_file import GgufFile
from .gguf_tokenizer import special_tokens, tokenizer_from_gguf
from .weights import expected_tensors

_EMBEDDINGS: Final = "token_embd.weight"
_HEAD: Final = "output.weight"
_NAMES: Final = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_PERMUTED: Final = ("LlamaForCausalLM", "SmolLM3ForCausalLM")
"""Architectures whose q and k rows GGUF reorders, to rotate neighbours instead of halves."""

_CHUNK_VALUES: Final = 1 << 24
"""Values dequantised at a time: 64 MiB."""
_ALIGNMENT_BYTES: Final = 64


def convert(path: Path, folder: Path, *, progress: Callable[[int, int], None] | None = None) -> None:
    """Convert a GGUF file into `folder`, which appears complete or not at all.

    `progress` is called with (bytes written, bytes in all). Raises `NotFound`, `MalformedBytes`,
    `LimitExceeded`, `UnsupportedFormat`, `UnsupportedModel` naming what is not supported, and `TierFull`.
    """
    source = GgufFile(path)
    config = _config(source)
    decoder = DecoderConfig.from_hf(config)
    tensors = _tensors(source, decoder)
    tokenizer = tokenizer_from_gguf(source.metadata)
    make_private_folder(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    try:
        with (part / "model.safetensors").open("wb") as file:
            _write_safetensors(file, source, decoder, tensors, progress)
            os.fsync(file.fileno())
        _write_json(part / "config.json", config)
        if tokenizer is not None:
            _write_json(part / "tokenizer.json", tokenizer)
            _write_json(part / "tokenizer_config.json", special_tokens(source.metadata))
        template = source.metadata.get("tokenizer.chat_template")
        if isinstance(template, str):
            (part / "chat_template.jinja").write_text(template, encoding="utf-8")
        for each in part.iterdir():
            each.chmod(PRIVATE_FILE)
        part.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and folder.exists():
            return  # another process was faster
        if error.errno != errno.ENOSPC:
            raise
        raise TierFull(f"no room to convert {path}", hint="free some space and try again", path=str(path)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _config(source: GgufFile) -> dict[str, Any]:
    if _EMBEDDINGS not in source.tensors:
        raise Corrupt(f"{source.path}: tensor {_EMBEDDINGS} is missing", tensor=_EMBEDDINGS)
    factors = dequantize_rows(source, ROPE_FACTORS, slice(None)).ravel() if ROPE_FACTORS in source.tensors else None
    return config_from_gguf(
        source.metadata,
        vocab_size=source.tensors[_EMBEDDINGS].shape[0],
        tied=_HEAD not in source.tensors,
        rope_factors=factors,
    )


def _tensors(source: GgufFile, decoder: DecoderConfig) -> dict[str, str]:
    """Map the name of each tensor the model uses to its name in the file, shapes checked."""
    names = {}
    for name, shape in expected_tensors(decoder).items():
        ours = _gguf_name(name)
        if ours not in source.tensors:
            raise Corrupt(f"{source.path}: tensor {ours} is missing", hint="download it again", tensor=ours)
        got = source.tensors[ours].shape
        if got != shape:
            raise UnsupportedModel(
                f"tensor {ours} has shape {list(got)}, the metadata needs {list(shape)}",
                tensor=ours,
                expected=list(shape),
                got=list(got),
            )
        names[name] = ours
    unknown = sorted(source.tensors.keys() - {*names.values(), ROPE_FACTORS})
    if unknown:
        raise UnsupportedModel(
            f"tensor {unknown[0]} is not part of {decoder.architecture}",
            hint="a model with this tensor would be computed wrongly",
            tensor=unknown[0],
        )
    return names


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{suffix}"
    index, _, inner = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{index}.{_LAYER_NAMES[inner]}.{suffix}"


def _write_safetensors(
    file: BinaryIO, source: GgufFile, decoder: DecoderConfig, tensors: Mapping[str, str],
    progress: Callable[[int, int], None] | None,
) -> None:  # fmt: skip
    """Write one tensor after the other, so that memory holds a part of one.

    The header is padded and tensors of odd size come last: a loader can use the others where they are mapped.
    """
    sizes = {name: 4 * prod(source.tensors[ours].shape) for name, ours in tensors.items()}
    order = sorted(tensors, key=lambda name: (sizes[name] % _ALIGNMENT_BYTES != 0, name))
    header, end = {}, 0
    for name in order:
        start, end = end, end + sizes[name]
        header[name] = {
            "dtype": "F32",
            "shape": source.tensors[tensors[name]].shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    file.write(len(text).to_bytes(8, "little") + text)
    done = 0
    for name in order:
        for rows in _dequantized(source, tensors[name], _row_order(name, decoder)):
            file.write(rows.data)
            done += rows.nbytes
            if progress is not None:
                progress(done, end)


def _row_order(name: str, decoder: DecoderConfig) -> NDArray[np.intp] | None:
    heads = decoder.num_heads if ".q_proj." in name else decoder.num_kv_heads if ".k_proj." in name else 0
    if not heads or decoder.architecture not in _PERMUTED:
        return None
    rows = np.arange(heads * decoder.head_dim)
    return rows.reshape(heads, decoder.head_dim // 2, 2).swapaxes(1, 2).ravel()


def _dequantized(source: GgufFile, name: str, order: NDArray[np.intp] | None) -> Iterator[NDArray[np.float32]]:
    """Give a tensor in parts of whole rows, little endian."""
    shape = source.tensors[name].shape
    rows, step = prod(shape[:-1]), max(1, _CHUNK_VALUES // shape[-1])
    for first in range(0, rows, step):
        wanted = slice(first, first + step)
        yield dequantize_rows(source, name, wanted if order is None else order[wanted])


def dequantize_rows(source: GgufFile, name: str, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
    """Dequantise some rows of a tensor. Raises `UnsupportedModel` for a quantisation without a decoder."""
    kind = source.tensors[name].kind
    try:
        with np.errstate(all="ignore"):  # damaged scales give infinities, which is what they say
            values = dequantize(source.rows(name)[rows], kind)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"tensor {name} is quantised as {kind.name}, which cannot be undone", tensor=name, got=kind.name
        ) from error
    return np.ascontiguousarray(values, dtype="<f4")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
