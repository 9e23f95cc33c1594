"""`--device`: what happens with a device, without one, and with one that does not compute this model."""

from typing import Any

import pytest

from cyberkv.runtime import engine
from cyberkv.runtime.cuda import choice, reference
from cyberkv.runtime.cuda.choice import Seen
from cyberkv.runtime.cuda.processor import DeviceProcessor
from tests.cli.conftest import Command
from tests.gpu.engines import SOUND
from tests.gpu.inline import InlineDevice, Launches

SEEN = Seen("a device of another machine", 90, 1 << 30)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one, also where there is one."""

    def look() -> Seen:
        raise choice._absent("torch sees none")

    monkeypatch.setattr(choice, "look", look)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is looked at, and never taken: what it does not compute is known before."""
    monkeypatch.setattr(choice, "look", lambda: SEEN)
    monkeypatch.setattr(choice, "TorchDevice", lambda: pytest.fail("the device was taken"))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> list[DeviceProcessor]:
    """Take host memory and the reference for a device, whose arithmetic is sound. Gives what was taken."""
    taken: list[DeviceProcessor] = []
    probe = engine.probe

    def open_device(_config: Any, _geometry: Any, **options: Any) -> DeviceProcessor:
        device = InlineDevice()
        options = {name: value for name, value in options.items() if value is not None}
        options = {"memory_bytes": 8 << 20, "host_bytes": 1 << 20, **options}
        taken.append(DeviceProcessor(device, Launches(device, reference), "inline", **options))
        return taken[-1]

    monkeypatch.setattr(choice, "open_device", open_device)
    monkeypatch.setattr(engine, "probe", lambda *parts: SOUND if parts[1].kind else probe(*parts))
    return taken


RUN = ("run", "How many?", "--max-tokens", 3)


def test_without_a_device_asking_for_one_is_an_error(cyberkv: Command, no_device: None) -> None:
    error = cyberkv.error(3, *RUN, "--device", "cuda")
    assert (error["kind"], error["device"]) == ("not-found", "cuda")
    assert error["message"] == "no CUDA device: torch sees none"
    assert "--device cpu" in error["hint"]


def test_the_environment_asks_too_and_the_command_line_wins(
    cyberkv: Command, no_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CYBERKV_DEVICE", "cuda")
    assert cyberkv.error(3, *RUN)["kind"] == "not-found"
    assert cyberkv.json(*RUN, "--device", "cpu")["tokens_generated"] == 3


def test_without_a_device_auto_is_the_processor_and_says_why_when_asked(cyberkv: Command, no_device: None) -> None:
    plain, told = (cyberkv(*verbose, *RUN, "--device", "auto") for verbose in ((), ("-v",)))
    assert plain.stdout == told.stdout
    reason = "computing on the processor: no CUDA device: torch sees none"
    assert reason in told.stderr
    assert reason not in plain.stderr


def test_what_the_device_does_not_compute_is_named_before_it_is_taken(cyberkv: Command, seen: None) -> None:
    """The small model has heads of 16; `auto` computes it on the processor."""
    error = cyberkv.error(5, *RUN, "--device", "cuda")
    assert (error["kind"], error["field"], error["got"]) == ("unsupported-model", "head_dim", 16)
    assert "head_dim 64, 80, 96, 128 or 256, not 16" in cyberkv("-v", *RUN, "--device", "auto").stderr


def test_a_device_is_taken_only_where_it_is_asked_for(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("cyberkv.runtime.cuda.choice.open_device", asked)
    assert cyberkv.json(*RUN)["tokens_generated"] == 3
    assert cyberkv(*RUN, "--device", "auto", ok=False).exit_code == 1  # control


def test_what_only_the_processor_does_is_refused_by_name(cyberkv: Command, seen: None) -> None:
    error = cyberkv.error(5, *RUN, "--select", "recent", "--device", "cuda")
    assert error["message"] == "--select is not done on a device"
    assert error["message"] in cyberkv("-v", *RUN, "--select", "recent", "--device", "auto").stderr


def test_commands_on_a_device_give_what_the_processor_gives(cyberkv: Command, inline: list[DeviceProcessor]) -> None:
    """Recorded on the device, gone on with there and on the processor, and the other way round."""
    there, here = (cyberkv.json(*RUN, "--name", device, "--device", device) for device in ("cuda", "cpu"))
    assert there["text"] == here["text"]
    assert len(inline) == 1
    more = [
        cyberkv.json("run", "And?", "--from", root, "--max-tokens", 3, "--device", device)
        for root, device in ((there["root"], "cuda"), (there["root"], "cpu"), (here["root"], "auto"))
    ]
    assert len({each["text"] for each in more}) == 1
    assert len(inline) == 3
    assert all(each["tokens_reused"] > 0 for each in more)


def test_its_memory_is_bounded_by_the_option(cyberkv: Command, inline: list[DeviceProcessor]) -> None:
    assert cyberkv.error(8, *RUN, "--device", "cuda", "--device-memory", "7B")["kind"] == "full"


def test_doctor_agrees(cyberkv: Command, no_device: None) -> None:
    found = cyberkv.json("doctor")
    assert found["device"]["reason"] == cyberkv.error(3, *RUN, "--device", "cuda")["message"]
    states = {part["name"]: (part["state"], part["note"]) for part in found["parts"]}
    assert states["computing on a CUDA device"] == ("off", "no CUDA device: torch sees none")


@pytest.mark.slow
def test_doctor_agrees_on_what_a_device_does_not_compute(cyberkv: Command, seen: None) -> None:
    error = cyberkv.error(5, *RUN, "--device", "cuda")
    states = {part["name"]: (part["state"], part["note"]) for part in cyberkv.json("doctor")["parts"]}
    assert states["computing on a CUDA device"] == ("off", f"with tiny: {error['message']}")
