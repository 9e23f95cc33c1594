from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.canonical import Domain
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.rings import window
from cyberkv.runtime.rings.plane import Plane
from tests import once
from tests.numerics.tiny import tiny_model


@pytest.fixture(scope="module", autouse=True)
def once_each() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        once.remember_answers(patch)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models only lose by more threads; tests about threads set their own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the folder of a small random model of a family, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tiny_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


@pytest.fixture(scope="session")
def load_tiny(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """Load a small random model, once per family and block size."""
    registry = Registry(tmp_path_factory.mktemp("models"))
    made: dict[tuple[str, int], LoadedModel] = {}

    def load(family: str = "llama", block_size: int = 16) -> LoadedModel:
        key = (family, block_size)
        if key not in made:
            record = registry.add(tiny(family), name=f"{family}-{block_size}", block_size=block_size)
            made[key] = registry.load(record)
        return made[key]

    return load


@pytest.fixture(scope="session")
def domains() -> dict[Cid, Domain]:
    """Domains by model: the known-answer test runs once per model, not once per test."""
    return {}


@pytest.fixture
def tiny_engine(
    load_tiny: Callable[..., LoadedModel], domains: dict[Cid, Domain], tmp_path: Path
) -> Iterator[Callable[..., Engine]]:
    """Give an engine over a small random model and a home; equal `home` names share a store and an index."""
    with ExitStack() as stack:
        homes: dict[str, tuple[DiskStore, Index]] = {}

        def engine(family: str = "llama", *, home: str = "home", block_size: int = 16) -> Engine:
            if home not in homes:
                store = stack.enter_context(DiskStore(tmp_path / home / "store"))
                homes[home] = (store, stack.enter_context(Index(tmp_path / home / "index")))
            loaded = load_tiny(family, block_size)
            made = build_engine(loaded, *homes[home], capacity_tokens=4096, domain=domains.get(loaded.cid))
            domains[loaded.cid] = made.domain
            return made

        yield engine


@pytest.fixture(scope="module")
def shared_engine(load_tiny: Callable[..., LoadedModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for all examples of a Hypothesis test."""
    home = tmp_path_factory.mktemp("shared")
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        yield build_engine(load_tiny("llama"), store, index)


@pytest.fixture
def poisoned_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """New planes are full of NaN instead of zeros: whatever reads a row that nobody wrote shows."""
    zeroed = Plane.zeroed

    def poisoned(*shape: Any) -> Plane:
        plane = zeroed(*shape)
        plane.key.fill_(float("nan"))
        plane.value.fill_(float("nan"))
        return plane

    monkeypatch.setattr(Plane, "zeroed", poisoned)


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch, poisoned_planes: None) -> None:
    """Rings of 32 rows for a window of 8."""
    monkeypatch.setattr(window, "SLACK_ROWS", 24)
