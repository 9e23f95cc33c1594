"""The stand-in for memory of a device is strict: a step that mixed it with the host's would not get by in the tests."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.gpu.inline import InlineDevice, Launches
from tests.gpu.placed import OnDevice


def on_device() -> Tensor:
    return InlineDevice().put(torch.arange(6.0).view(3, 2))


HOST = torch.ones(3, 2)
MIXED: dict[str, Callable[[Tensor], object]] = {
    "a sum": lambda here: here + HOST,
    "into the host's": lambda here: HOST.add(here),
    "an index of the host's": lambda here: HOST[here[0].long()],
    "an assignment": lambda here: here.__setitem__(slice(3), HOST),
    "a list": lambda here: torch.cat([HOST, here]),
    "a view": lambda here: here[1:].t() @ HOST[:2],
    "a kernel": lambda here: Launches(InlineDevice(), torch).add(here, HOST),
    "a look": lambda here: here.numpy(),
}


@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
def test_what_a_device_refuses_is_refused(mixed: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, TypeError, AssertionError)):
        mixed(on_device())


def test_what_a_device_takes_is_taken() -> None:
    here = on_device()
    for made in (
        here + torch.tensor(2.0),
        2 * here[torch.tensor([0, 2])],
        Launches(InlineDevice(), torch).add(here, here),
    ):
        assert isinstance(made, OnDevice)
    here.copy_(HOST)
    assert type(here.cpu()) is Tensor
    assert torch.equal(here.cpu(), HOST)
    assert HOST.clone().copy_(on_device()).tolist() == [[0, 1], [2, 3], [4, 5]]
