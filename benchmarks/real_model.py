"""SmolLM2 for the benchmarks: one engine over a fresh home, and the same weights in transformers."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads; see docs/design.md, Threads

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.models.registry import LoadedModel, Registry, smollm2_source

from .common import CACHE, scratch


def load_smollm2() -> LoadedModel:
    """Register the real model once in a cache folder and load it."""
    registry = Registry(CACHE)
    if not any(record.name == "smollm2" for record in registry.records()):
        registry.add(smollm2_source(), name="smollm2")
    return registry.load(registry.find("smollm2"))


def load_peer(loaded: LoadedModel) -> Any:
    """The same weights in transformers, float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        Registry(CACHE).weights_folder(loaded.record), dtype=torch.float32
    ).eval()


@contextmanager
def fresh_engine(loaded: LoadedModel, folder: Path) -> Iterator[Engine]:
    """An engine over an empty store and index in `folder`, removed afterwards."""
    with scratch(folder) as home, DiskStore(home / "store") as store, Index(home / "index") as index:
        yield build_engine(loaded, store, index)


def prompt(tokens: int, vocab_size: int, salt: int = 0) -> list[int]:
    """A fixed, aperiodic token sequence."""
    return [(7919 * i * i + 104729 * i + 13 + 31 * salt) % (vocab_size - 64) + 32 for i in range(tokens)]
