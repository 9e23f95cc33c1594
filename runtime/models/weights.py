"""Weights from safetensors files, and the digest that names them.

The digest covers each tensor the model uses, sorted by name: name, dtype, shape, bytes as stored. It is the
same for one file or many, whatever their metadata, and it is computed at every load, so that a weight changed
behind an unchanged name is noticed.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...cybergraph.dagcbor import encode
from ...cybergraph.errors import Corrupt, NotFound, UnsupportedModel
from ..geometry import KvDtype
from ..quant import DTYPES
from .config import DecoderConfig
from .files import read_json

_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

INDEX_FILE: Final = "model.safetensors.index.json"

_ADAPTER: Final = "adapter_config.json"
"""transformers applies an adapter that lies beside the weights without being asked."""

_ALIGNMENT_BYTES: Final = 64
_EMBEDDINGS: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors a model uses, named as in transformers."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.is_gate_up_fused:
        layer |= {"mlp.gate_up_proj.weight": (2 * inner, hidden)}
    else:
        layer |= {"mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden)}
    if config.attention_bias:
        layer |= {"self_attn.q_proj.bias": (q_rows,)}
        layer |= {"self_attn.k_proj.bias": (kv_rows,), "self_attn.v_proj.bias": (kv_rows,)}
    if config.qk_norm:
        layer |= {
            "self_attn.q_norm.weight": (config.head_dim,),
            "self_attn.k_norm.weight": (config.head_dim,),
        }
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{index}.{name}": shape for index in range(config.num_layers) for name, shape in layer.items()
    }
    shapes |= {_EMBEDDINGS: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_embeddings:
        shapes[_HEAD] = (config.vocab_size, hidden)
    return shapes


def load_weights(folder: Path, config: DecoderConfig, dtype: KvDtype) -> tuple[dict[str, Tensor], str]:
    """Load the tensors of a model in `dtype`, and name them: `blake3:<hex>`.

    A tensor stored in `dtype` stays mapped from its file where its address allows. Raises `NotFound` without
    weight files, `Corrupt` for a damaged or incomplete file, and `UnsupportedModel` naming the tensor for a
    wrong shape or an unexpected one.
    """
    stored = _stored(folder, config)
    return {name: _place(tensor, DTYPES[dtype]) for name, tensor in stored.items()}, _digest(stored)


def weights_digest(folder: Path, config: DecoderConfig) -> str:
    """Name the weights without loading them. Raises as `load_weights`."""
    return _digest(_stored(folder, config))


def _stored(folder: Path, config: DecoderConfig) -> dict[str, Tensor]:
    """Map the tensors a model uses, as they are in the files."""
    stored: dict[str, Tensor] = {}
    with ExitStack() as files:
        where = _locate(folder, files)
        for name, shape in expected_tensors(config).items():
            if name not in where:
                raise Corrupt(f"{folder}: tensor {name} is missing", hint="the download may be incomplete", tensor=name)
            stored[name] = _read(where[name], name, shape)
        _refuse_unexpected(where, stored, config)
    return stored


def _locate(folder: Path, files: ExitStack) -> dict[str, Any]:
    """Map each tensor name to the open file that holds it."""
    if (folder / _ADAPTER).exists():
        raise UnsupportedModel(
            f"{folder} holds an adapter, which would be left out",
            hint="merge it into the weights, or move its files to another folder",
            field="adapters",
            got=_ADAPTER,
        )
    index = folder / INDEX_FILE
    where: dict[str, Any] = {}
    for path in _shards(folder, read_json(index)) if index.exists() else sorted(folder.glob("*.safetensors")):
        try:
            file = files.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise Corrupt(
                f"{path} is not a readable safetensors file: {error}",
                hint="download it again",
                path=str(path),
            ) from error
        for name in file.keys():  # noqa: SIM118 - not a mapping
            if name in where:
                raise Corrupt(f"{folder}: tensor {name} stands in two files", tensor=name)
            where[name] = file
    if not where:
        raise NotFound(f"no weights in {folder}", hint="needs *.safetensors files", path=str(folder))
    return where


def _shards(folder: Path, index: Any) -> list[Path]:
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Corrupt(f"{folder / INDEX_FILE} has no weight_map", path=str(folder / INDEX_FILE))
    # A name with a path in it could lead anywhere on the machine.
    return [folder / Path(name).name for name in sorted(set(names.values()))]


def _read(file: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    try:
        tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"tensor {name} cannot be read: {error}", tensor=name) from error
    if tuple(tensor.shape) != shape:
        raise UnsupportedModel(
            f"tensor {name} has shape {list(tensor.shape)}, config.json needs {list(shape)}",
            hint="config.json and the weights belong to different models",
            tensor=name,
            expected=list(shape),
            got=list(tensor.shape),
        )
    if tensor.dtype not in _NAMES:
        raise UnsupportedModel(
            f"tensor {name} is stored as {tensor.dtype}, this runtime needs {', '.join(_NAMES.values())}",
            hint="quantised weights need to be dequantised first",
            tensor=name,
            got=str(tensor.dtype),
        )
    return tensor


def _refuse_unexpected(where: Mapping[str, Any], stored: dict[str, Tensor], config: DecoderConfig) -> None:
    for name in sorted(where.keys() - stored.keys()):
        if name == _HEAD and config.tied_embeddings:
            if torch.equal(_read(where[name], name, tuple(stored[_EMBEDDINGS].shape)), stored[_EMBEDDINGS]):
                continue
            raise UnsupportedModel(
                f"tensor {_HEAD} differs from {_EMBEDDINGS}, but tie_word_embeddings is true",
                hint="set tie_word_embeddings to false in config.json if the head is its own",
                tensor=name,
            )
        if not name.endswith("rotary_emb.inv_freq"):  # old files keep this derived table
            raise UnsupportedModel(
                f"tensor {name} is not part of {config.architecture} as config.json describes it", tensor=name
            )


def _place(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype != dtype:
        return tensor.to(dtype)
    # The product of one row with a matrix rounds differently where the matrix stands at an address that is no
    # multiple of 16, so the place of a weight in its file would reach the bytes.
    return tensor if tensor.data_ptr() % _ALIGNMENT_BYTES == 0 else tensor.clone()


def _digest(stored: dict[str, Tensor]) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    for frame in _frames(stored):
        hasher.update(frame)
    return f"blake3:{hasher.hexdigest()}"


def _frames(stored: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    for name, tensor in sorted(stored.items()):
        yield encode([name, _NAMES[tensor.dtype], list(tensor.shape)])
        yield tensor.contiguous().view(-1).view(torch.uint8).numpy().data
