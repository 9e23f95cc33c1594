"""Settings and fixtures shared by every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore, MemoryStore

# No deadline and no randomness: a test must not fail because the machine is busy, or only once.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def disk_store(home: Path) -> Iterator[DiskStore]:
    with DiskStore(home / "store") as store:
        yield store


@pytest.fixture
def index(home: Path) -> Iterator[Index]:
    with Index(home / "index") as opened:
        yield opened
