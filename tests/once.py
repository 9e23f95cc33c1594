"""What every engine and command does anew and what gives the same each time, done once in this process.

On a tiny model that is most of the time of a command: loading it, the known-answer test, and the process that renders a
template. `cyberkv doctor` runs the test unless a test asks for `answers_once`, what a test calls itself always runs,
and the processes that tests start do everything. But a server that is asked many times may be started as
`python -m tests.once`: the command, which starts one process for each template and renders by itself what follows.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.runtime import engine
from cyberkv.runtime.attention.panels import FLOOR_ROWS
from cyberkv.runtime.canonical import Domain
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.models import rendering, template
from cyberkv.runtime.models.decoder import Decoder
from cyberkv.runtime.models.record import ModelRecord
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.splice import documents

if TYPE_CHECKING:
    import pytest

build_engine, probe, reply, load = engine.build_engine, documents.probe, template._reply, Registry.load
# What was found, by all that it depends on.
_models: WeakKeyDictionary[Decoder, Cid] = WeakKeyDictionary()
_found: dict[object, Domain] = {}
_loaded: dict[object, LoadedModel] = {}
_replies: dict[str, str] = {}
_sources: set[str] = set()
"""Templates that a process of its own has rendered without an objection."""
_TINY_BYTES = 1 << 20
"""A model that takes more is not kept."""


def remember(patch: "pytest.MonkeyPatch") -> None:
    """Let commands of this process take what was found before."""

    def build(loaded: Any, *parts: Any, **options: Any) -> engine.Engine:
        kind = getattr(options.get("processor"), "kind", "")  # of a device, which computes otherwise
        _models[loaded.decoder] = name = _name(loaded)
        key = _key(name, loaded.geometry, kind)
        made = build_engine(loaded, *parts, **{"domain": _found.get(key), **options})
        _found[key] = made.domain
        return made

    patch.setattr(Registry, "load", _load)
    patch.setattr(engine, "build_engine", build)
    patch.setattr(documents, "probe", _known)
    patch.setattr(template, "_reply", _rendered)


@contextmanager
def remembering() -> Iterator[None]:
    """As `remember`, for as long as the `with` lasts: what several tests share is made before any of them patches."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        remember(patch)
        yield


def remember_answers(patch: "pytest.MonkeyPatch") -> None:
    """Let every engine that this process makes over a registered model take what was found before."""

    def loaded(registry: Registry, *parts: Any) -> LoadedModel:
        found = load(registry, *parts)
        _models[found.decoder] = _name(found)
        return found

    patch.setattr(Registry, "load", loaded)
    patch.setattr(engine, "probe", _known)
    patch.setattr(documents, "probe", _known)
    patch.setattr(template, "_reply", _rendered)


def _load(registry: Registry, record: ModelRecord, arithmetic: Any = None) -> LoadedModel:
    files = {path: path.stat() for path in sorted(record.source.iterdir())} if record.source.is_dir() else {}
    if arithmetic is not None or not files or sum(each.st_size for each in files.values()) > _TINY_BYTES:
        return load(registry, record, arithmetic)
    key = (record.cid, *((path, each.st_ino, each.st_size, each.st_mtime_ns) for path, each in files.items()))
    if key not in _loaded:
        _loaded[key] = load(registry, record)
    return replace(_loaded[key], record=record)


def _name(loaded: LoadedModel) -> Cid:
    return replace(loaded.identity, block_size=FLOOR_ROWS, layers_per_leaf=1).cid()


def _key(name: Cid, geometry: Geometry, kind: str) -> object:
    """All that the known-answer test depends on: of blocks it takes up to 16 rows, and leaves of one layer."""
    alike = replace(geometry, block_size=min(FLOOR_ROWS, geometry.block_size), layers_per_leaf=1)
    return name, alike, kind, torch.get_num_threads()


def _known(decoder: Decoder, processor: Any, geometry: Any) -> Domain:
    if decoder not in _models:
        return probe(decoder, processor, geometry)
    key = _key(_models[decoder], geometry, processor.kind)
    if key not in _found:
        _found[key] = probe(decoder, processor, geometry)
    return _found[key]


def _rendered(request: Any) -> Any:
    key = json.dumps(request)
    if key not in _replies:
        # What bounds a program that somebody else wrote is shown by the first; then it is the same code, called here.
        answer = rendering._reply(request) if request["source"] in _sources else reply(request)
        if "texts" in answer:
            _sources.add(request["source"])
        _replies[key] = json.dumps(answer)
    return json.loads(_replies[key])


if __name__ == "__main__":
    from cyberkv.cli.__main__ import main

    template._reply = _rendered
    main()
