"""What every command does anew and what gives the same each time, done once in this process.

On a tiny model that is most of the time of a command: the known-answer test, and the process that renders a template.
`cyberkv doctor` always runs the known-answer test, and the processes that tests start do everything.
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
from cyberkv.runtime.splice import documents

build_engine, probe, reply = engine.build_engine, documents.probe, template._reply
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

    def known(decoder: Decoder, processor: Any, geometry: Any) -> Domain:
        key = (_models[decoder], geometry, torch.get_num_threads())
        if key not in _found:
            _found[key] = probe(decoder, processor, geometry)
        return _found[key]

    def rendered(request: Any) -> Any:
        key = json.dumps(request)
        if key not in _replies:
            _replies[key] = json.dumps(reply(request))
        return json.loads(_replies[key])

    patch.setattr(engine, "build_engine", build)
    patch.setattr(documents, "probe", known)
    patch.setattr(template, "_reply", rendered)
