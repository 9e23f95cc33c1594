"""What every engine and command does anew and what gives the same each time, done once in this process.

On a tiny model that is most of the time of a command: the known-answer test, and the process that renders a template.
`cyberkv doctor` runs the test unless a test asks for `answers_once`, what a test calls itself always runs, and the
processes that tests start do everything.
"""

import json
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.runtime import engine
from cyberkv.runtime.canonical import Domain
from cyberkv.runtime.models import template
from cyberkv.runtime.models.decoder import Decoder
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.splice import documents

build_engine, probe, reply, load = engine.build_engine, documents.probe, template._reply, Registry.load
# What was found, by all that it depends on.
_models: WeakKeyDictionary[Decoder, Cid] = WeakKeyDictionary()
_found: dict[object, Domain] = {}
_replies: dict[str, str] = {}


def remember(patch: pytest.MonkeyPatch) -> None:
    """Let commands of this process take what was found before."""

    def build(loaded: Any, *parts: Any, **options: Any) -> engine.Engine:
        kind = getattr(options.get("processor"), "kind", "")  # of a device, which computes otherwise
        key = (loaded.cid, loaded.geometry, kind, torch.get_num_threads())
        _models[loaded.decoder] = loaded.cid
        made = build_engine(loaded, *parts, **{"domain": _found.get(key), **options})
        _found[key] = made.domain
        return made

    patch.setattr(engine, "build_engine", build)
    patch.setattr(documents, "probe", _known)
    patch.setattr(template, "_reply", _rendered)


def remember_answers(patch: pytest.MonkeyPatch) -> None:
    """Let every engine that this process makes over a registered model take what was found before."""

    def loaded(registry: Registry, *parts: Any) -> LoadedModel:
        found = load(registry, *parts)
        _models[found.decoder] = found.cid
        return found

    patch.setattr(Registry, "load", loaded)
    patch.setattr(engine, "probe", _known)
    patch.setattr(documents, "probe", _known)
    patch.setattr(template, "_reply", _rendered)


def _known(decoder: Decoder, processor: Any, geometry: Any) -> Domain:
    if decoder not in _models:
        return probe(decoder, processor, geometry)
    key = (_models[decoder], geometry, processor.kind, torch.get_num_threads())
    if key not in _found:
        _found[key] = probe(decoder, processor, geometry)
    return _found[key]


def _rendered(request: Any) -> Any:
    key = json.dumps(request)
    if key not in _replies:
        _replies[key] = json.dumps(reply(request))
    return json.loads(_replies[key])
