"""Engines on a device that is the host, by the reference, interpreted kernels or something else."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import torch

pytest.importorskip("transformers", reason="it makes the small models")

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore, Store
from cyberkv.runtime.canonical import Domain
from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.device import TorchDevice
from cyberkv.runtime.cuda.processor import DeviceProcessor
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.models.registry import Registry
from tests.gpu.inline import InlineDevice, Launches
from tests.numerics.tiny import tiny_model

KIND = "inline"
SOUND = Domain("f32-inline-0123456789abcdef", "f32-inline-0123456789abcdef/1-01234567", scores_together=True)
"""What the known-answer test gives with the reference, but for the digits: for where it is not what is tested."""
HEAD_DIM = 64
"""The least that the kernels take; those of other tests are smaller."""


def kernels() -> Any:
    """The kernels themselves: interpreted, or on the GPU where there is one."""
    from cyberkv.runtime.cuda.kernels import launch

    return launch


def changed(**functions: Callable[..., Any]) -> Any:
    """The reference with other functions in place of some."""
    return SimpleNamespace(**{**vars(reference), **functions})


class Home(Protocol):
    """What an engine records into: that of another one, for example."""

    store: Store
    index: Index


@dataclass
class Made:
    engine: Engine
    device: InlineDevice
    """What it runs on, unless that is a GPU."""


class Engines:
    """Engines of small models, each over a store of its own unless it is given one."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.registry = Registry(folder / "models")
        self.homes = 0
        """How many indices were made."""

    def record(self, family: str = "llama", **options: Any) -> Any:
        name = "-".join([family, *(f"{key}-{value}" for key, value in options.items())])
        source = self.folder / family
        if not source.exists():
            tiny_model(family, source, head_dim=HEAD_DIM, num_hidden_layers=3)
        if not (self.registry.folder / f"{name}.json").exists():
            self.registry.add(source, name=name, **options)
        return self.registry.find(name)

    def index(self) -> Index:
        self.homes += 1
        return self._stack.enter_context(Index(self.folder / f"index-{self.homes}"))

    def host(self, family: str = "llama", **options: Any) -> Engine:
        return build_engine(
            self.registry.load(self.record(family, **options)), MemoryStore(), self.index(), capacity_tokens=1024,
            domain=Domain("f32-host", "f32-host"),
        )  # fmt: skip

    def device(
        self, family: str = "llama", *, functions: Any = reference, domain: Domain | None = SOUND, blocks: int = 64,
        host_blocks: int = 4, captures: bool = True, beside: Home | None = None, by_layer: bool = False,
        **options: Any,
    ) -> Made:  # fmt: skip
        """Make one; `beside` another, it has the same store and index, and nothing else.

        `by_layer`, each layer has a leaf of its own, and not all of them one.
        """
        record, device = self.record(family, **options), InlineDevice()
        block_bytes = Geometry.from_model(record.identity).block_bytes
        on_gpu = torch.cuda.is_available() and functions is kernels()
        place, launches = (TorchDevice(), functions) if on_gpu else (device, Launches(device, functions))
        processor = DeviceProcessor(
            place, launches, KIND, memory_bytes=blocks * block_bytes,
            host_bytes=host_blocks * block_bytes, captures=captures,
        )  # fmt: skip
        loaded = self.registry.load(record, processor.arithmetic)
        if by_layer:
            identity = replace(loaded.identity, layers_per_leaf=1)
            loaded = replace(loaded, identity=identity, cid=identity.cid(), geometry=Geometry.from_model(identity))
        store, index = (MemoryStore(), self.index()) if beside is None else (beside.store, beside.index)
        return Made(build_engine(loaded, store, index, domain=domain, processor=processor), device)
