"""Reading a GGUF file without trusting it: counts and offsets are checked before memory is taken."""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ...cybergraph.errors import LimitExceeded, MalformedBytes, UnsupportedFormat

MAX_FIELDS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 16
MAX_ITEMS: Final = 1 << 22
"""Values in all arrays together; a vocabulary with its merges has under a million."""
MAX_STRING_BYTES: Final = 1 << 20

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Final = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies."""

    shape: tuple[int, ...]
    """Slowest dimension first, as in torch."""
    kind: GGMLQuantizationType
    start: int
    size_bytes: int


class GgufFile:
    """Metadata and tensors of one GGUF file.

    Raises `MalformedBytes` (with `offset`), `LimitExceeded`, or `UnsupportedFormat` for another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise MalformedBytes(f"{path} is not a GGUF file", hint="or give the folder of a model", path=str(path))
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        self._items_left = MAX_ITEMS
        version = self._number("<I")
        if version not in _VERSIONS:
            raise UnsupportedFormat(f"{path} is GGUF version {version}, this program reads 2 and 3", path=str(path))
        tensor_count, field_count = self._number("<Q"), self._number("<Q")
        if tensor_count > MAX_TENSORS or field_count > MAX_FIELDS:
            raise LimitExceeded(f"{path} claims {tensor_count} tensors and {field_count} fields", path=str(path))
        self.metadata: dict[str, Any] = {}
        for _ in range(field_count):
            name = self._string()
            self.metadata[name] = self._value(self._number("<I"))
        self.tensors = self._read_tensors(tensor_count)

    def rows(self, name: str) -> NDArray[np.uint8]:
        """Give the stored bytes of a tensor. Shape: [rows, bytes of a row]."""
        info = self.tensors[name]
        rows = prod(info.shape[:-1])
        data = np.frombuffer(self._data, np.uint8, count=info.size_bytes, offset=info.start)
        return data.reshape(rows, info.size_bytes // rows)

    def _read_tensors(self, count: int) -> dict[str, TensorInfo]:
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16:
            raise self._malformed(f"alignment {alignment!r}")
        tensors: dict[str, TensorInfo] = {}
        for _ in range(count):
            name, dims = self._string(), self._number("<I")
            if not 1 <= dims <= 4 or name in tensors:
                raise self._malformed(f"tensor {name!r:.80} stands twice or has {dims} dimensions")
            shape = tuple(self._number("<Q") for _ in range(dims))[::-1]
            kind = self._number("<I")
            tensors[name] = self._tensor(name, shape, kind, self._number("<Q"))
        start = -(-self._at // alignment) * alignment
        tensors = {
            name: TensorInfo(info.shape, info.kind, start + info.start, info.size_bytes)
            for name, info in tensors.items()
        }
        # Tensors that share bytes would let a small file ask for endless output.
        end = max((info.start + info.size_bytes for info in tensors.values()), default=0)
        if end > len(self._data) or sum(info.size_bytes for info in tensors.values()) > len(self._data):
            raise self._malformed(f"tensors reach to {end} of {len(self._data)} bytes, or overlap")
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> TensorInfo:
        try:
            quantization = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[quantization]
        except (ValueError, KeyError):
            raise UnsupportedFormat(f"tensor {name} has the unknown type {kind}", tensor=name) from None
        if min(shape) < 1 or shape[-1] % block:
            raise self._malformed(f"tensor {name!r:.80} has shape {shape}, blocks of {block}")
        return TensorInfo(shape, quantization, start, prod(shape) // block * block_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind, count = self._number("<I"), self._number("<Q")
        self._items_left -= count
        if self._items_left < 0:
            raise LimitExceeded(f"{self.path} holds over {MAX_ITEMS} array values", path=str(self.path))
        return [self._string() for _ in range(count)] if kind == _STRING else self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise self._malformed(f"value type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _string(self) -> str:
        size_bytes = self._number("<Q")
        if size_bytes > MAX_STRING_BYTES:
            raise LimitExceeded(f"{self.path} holds a text of {size_bytes} bytes", path=str(self.path))
        try:
            return self._take(size_bytes).decode()
        except UnicodeDecodeError:
            raise self._malformed("a text that is not UTF-8") from None

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _take(self, size_bytes: int) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise self._malformed(f"{size_bytes} bytes wanted, {len(self._data) - self._at} left")
        data = self._data[self._at : end]
        self._at = end
        return data

    def _malformed(self, what: str) -> MalformedBytes:
        return MalformedBytes(
            f"{self.path} is damaged at byte {self._at}: {what}",
            hint="download it again",
            path=str(self.path),
            offset=self._at,
        )
