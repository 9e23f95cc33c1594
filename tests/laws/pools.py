"""Both kinds of pool: in host memory, and on a device that does what is queued as late as it may."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from random import Random

import pytest

from cyberkv.runtime.cuda.devicepool import DevicePool
from tests.gpu.fakes import FakeDevice
from tests.laws.shelves import GEOMETRY, Home, host_pool


def late_pool(
    rows: int, host_bytes: int, *, device: FakeDevice | None = None, executor: Executor | None = None
) -> DevicePool:
    return DevicePool(
        device or FakeDevice(Random(rows)), GEOMETRY, rows, host_bytes=host_bytes, executor=executor,
        slot_bytes=2 * GEOMETRY.leaf_bytes(0), slots=2,
    )  # fmt: skip


KINDS = {"host": host_pool, "late": late_pool}


@contextmanager
def homes_over(kind: str) -> Iterator[str]:
    """Have homes make pools of one kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Home, "pools", staticmethod(KINDS[kind]))
        yield kind


@pytest.fixture(scope="module", params=KINDS)
def pools(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run over pools of one kind, then of the other."""
    with homes_over(request.param) as kind:
        yield kind


@pytest.fixture(scope="module", params=["host", pytest.param("late", marks=pytest.mark.slow)])
def pools_at_length(request: pytest.FixtureRequest) -> Iterator[str]:
    """As `pools`; the second kind with the slow tests."""
    with homes_over(request.param) as kind:
        yield kind
