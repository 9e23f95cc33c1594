"""The JSON record of one registered model."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt, CyberKVError, UnsupportedFormat
from ...cybergraph.identity import digest
from ...cybergraph.nodes import Model
from ...cybergraph.private import make_private_folder
from .files import read_json

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A registered model."""

    name: str
    cid: Cid
    identity: Model
    source: Path
    """What was registered: a safetensors folder or a GGUF file."""
    gguf: str | None
    """`blake3:<hex>` of the GGUF file; None for a folder."""
    tokenizer_file: str | None
    """`blake3:<hex>` of the bytes of `tokenizer.json`: while they are the same, its canonical form need not be
    made to know its digest."""


def tokenizer_file_digest(folder: Path) -> str | None:
    """Hash the bytes of a folder's `tokenizer.json`; None if it has none."""
    try:
        return digest((folder / "tokenizer.json").read_bytes())
    except FileNotFoundError:
        return None


def write_record(path: Path, record: ModelRecord) -> None:
    """Write a record so that a reader sees the old one or the new one, never a part."""
    content = {
        "version": _VERSION,
        "cid": str(record.cid),
        "source": str(record.source),
        "gguf": record.gguf,
        "tokenizer_file": record.tokenizer_file,
        "identity": record.identity.encode().hex(),
    }
    make_private_folder(path.parent)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def read_record(path: Path) -> ModelRecord:
    """Read a record. Raises `Corrupt`, or `UnsupportedFormat` for a newer version, naming the file."""
    content: Any = read_json(path)
    try:
        version = content["version"]
        if version == _VERSION:
            cid = Cid.parse(content["cid"])
            model = Model.decode(bytes.fromhex(content["identity"]), verify=cid)
            gguf, tokenizer = (value and str(value) for value in (content["gguf"], content["tokenizer_file"]))
            return ModelRecord(path.stem, cid, model, Path(content["source"]), gguf, tokenizer)
    except (CyberKVError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(
            f"{path} is not a model record: {error}",
            hint="delete it and register the model again with `cyberkv model add`",
            path=str(path),
        ) from error
    raise UnsupportedFormat(
        f"{path} is a model record of version {version}, this program reads version {_VERSION}",
        hint="a newer cyberkv may read it",
        path=str(path),
    )
