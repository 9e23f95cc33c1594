"""`--device`: what happens with a device, without one, and with one that does not compute this model."""

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberkv.runtime import engine
from cyberkv.runtime.cuda import backends, choice, reference
from cyberkv.runtime.cuda.choice import Seen
from cyberkv.runtime.cuda.devicepool import DevicePool
from cyberkv.runtime.cuda.processor import DeviceProcessor
from tests import once
from tests.cli.conftest import Command
from tests.gpu.engines import SOUND
from tests.gpu.inline import InlineDevice, Launches

PINNED_BYTES = 40 << 20
"""What the system gives: more than leaves are staged in, and less than is the default below a device."""
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
        device = InlineDevice(left_pinned_bytes=PINNED_BYTES)
        options = {name: value for name, value in options.items() if value is not None}
        options = {"memory_bytes": 8 << 20, **options}
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
    asks = ("run", "How many of them are there, by and large?", "--max-tokens", 3)
    there, here = (cyberkv.json(*asks, "--name", device, "--device", device) for device in ("cuda", "cpu"))
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


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("room", "bytes"), ("arithmetic", "nothing may be sealed here"),
        ("kernels", "the known-answer test fails on the device: no C compiler"),
    ],
)  # fmt: skip
def test_a_device_that_cannot_is_given_back_where_the_choice_was_open(
    fault: str, reason: str, cyberkv: Command, inline: list[DeviceProcessor], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[weakref.ref[DevicePool]] = []
    make = DeviceProcessor.engine_pool

    def noted(*given: Any) -> DevicePool:
        pools.append(weakref.ref(pool := make(*given)))
        return pool

    monkeypatch.setattr(DeviceProcessor, "engine_pool", noted)
    asks = (*RUN, "--name", "talk")
    if fault == "room":
        asks += ("--device-memory", "7B")
    else:
        probe, broken = engine.probe, replace(SOUND, broken="steps of 16 gave other bytes than one chunk")

        def probe_on(decoder: Any, processor: Any, geometry: Any) -> Any:
            if processor.kind and fault == "kernels":
                raise RuntimeError("no C compiler\nset CC")
            return broken if processor.kind else probe(decoder, processor, geometry)

        monkeypatch.setattr(engine, "probe", probe_on)
        monkeypatch.setattr(engine, "build_engine", once.build_engine)
    refused = cyberkv.error(8 if fault == "room" else 5, *asks, "--device", "cuda")
    told = cyberkv("-v", "--json", *asks, "--device", "auto")
    assert f"computing on the processor: {refused['message']}" in told.stderr
    assert reason in refused["message"]
    assert told.json["text"] == cyberkv.json(*RUN)["text"]
    assert [pool() for pool in pools] == [None] * (2 if fault == "arithmetic" else 0)
    assert len(inline) == 2


def test_a_refusal_of_page_locked_memory_is_said_where_asked_and_costs_nothing_else(
    cyberkv: Command, inline: list[DeviceProcessor]
) -> None:
    plain, told = (cyberkv(*verbose, *RUN, "--device", "cuda") for verbose in ((), ("-v",)))
    assert plain.stdout == told.stdout
    lines = [line for line in told.stderr.splitlines() if "host memory" in line]
    assert lines == ["below the device are 32.0 MiB of host memory: the system refused 992.0 MiB more"]
    assert "host memory" not in plain.stderr
    assert [round(each.host_bytes / (1 << 20)) for each in inline] == [32, 32]


def test_a_dialogue_on_a_device_says_who_evicts(cyberkv: Command, inline: list[DeviceProcessor]) -> None:
    """It goes on; the control is the command that it names."""
    turns = "How many of them are there?\n/evict 2:5\n/quit\n"
    said = cyberkv("chat", "--device", "auto", "--max-tokens", 3, stdin=turns)
    [line] = [line for line in said.stderr.splitlines() if "evicting" in line]
    assert line.startswith("evicting in mode exact reads rows in host memory, and this pool is on a device; ")
    command = line.partition("`")[2].partition("`")[0].split()
    assert command[:2] + command[3:] == ["cyberkv", "evict", "START:END"]
    assert cyberkv.json("evict", command[2], "2:5")["receipt"]["dropped_tokens"] == 3
    assert len(inline) == 1


@pytest.mark.parametrize("option", ["--select", "--source"])
def test_what_only_the_processor_does_goes_to_it_unless_the_device_was_asked_for(
    option: str, cyberkv: Command, inline: list[DeviceProcessor], tmp_path: Path
) -> None:
    root = cyberkv.json(*RUN, "--name", "talk")["root"]
    cyberkv("publish", "talk", "--public", "--yes", "--car", tmp_path / "talk.car")
    more = (
        ["--select", "recent"] if option == "--select" else ["--source", tmp_path / "talk.car", "--trust", "unsigned"]
    )
    asks = ("run", "And?", "--from", root, "--max-tokens", 3, *more)
    error = cyberkv.error(5, *asks, "--device", "cuda")
    assert (error["kind"], error["message"]) == ("unsupported-model", f"{option} is not done on a device")
    assert "--device cpu" in error["hint"]
    assert cyberkv.json(*asks, "--device", "auto")["text"] == cyberkv.json(*asks)["text"]
    assert inline == []


@pytest.mark.usefixtures("answers_once")
def test_doctor_tries_each_model_on_the_device(
    cyberkv: Command, inline: list[DeviceProcessor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where the schedules differ there, it is broken, and the processor is not."""
    monkeypatch.setattr(choice, "look", lambda: SEEN)
    monkeypatch.setattr(backends, "unsupported", lambda *_, **__: None)
    monkeypatch.setattr(backends, "installed_here", lambda: frozenset({"triton"}))
    found = cyberkv.json("doctor")
    [model] = found["models"]
    there = model["on_device"]
    assert (there["domain"], there["reason"]) == (SOUND.name, None)
    assert there["room_tokens"] == 16 * ((8 << 20) // cyberkv.json("size", "tiny", 16)["bytes"])
    assert (there["host_bytes"], there["host_bytes_refused"]) == (inline[0].host_bytes, inline[0].refused_host_bytes)
    assert model["domain"] not in (SOUND.name, None)
    assert found["problems"] == []
    states = {part["name"]: part["state"] for part in found["parts"]}
    assert states["computing on a CUDA device"] == "real"
    assert f"  on the device: domain {SOUND.name}, room for " in cyberkv("doctor").stdout
    broken = replace(SOUND, broken="steps of 16 gave other bytes than one chunk")
    probe = engine.probe
    monkeypatch.setattr(engine, "probe", lambda *parts: broken if parts[1].kind else probe(*parts))
    result = cyberkv("--json", "doctor", ok=False)
    found = json.loads(result.stdout)
    assert (result.exit_code, len(found["problems"]), found["models"][0]["seals"]) == (5, 1, True)
    assert found["models"][0]["on_device"] == {"domain": None, "reason": found["problems"][0]["message"]}
    states = {part["name"]: (part["state"], part["note"]) for part in found["parts"]}
    assert states["computing on a CUDA device"] == ("off", f"with tiny: {found['problems'][0]['message']}")


@pytest.mark.usefixtures("answers_once")
@pytest.mark.usefixtures("answers_once")
@pytest.mark.parametrize("broken", [None, "steps of 16 gave other bytes than one chunk"])
def test_doctor_gives_a_device_back_before_the_next_model(
    broken: str | None, cyberkv: Command, add_tiny: Callable[..., Path], inline: list[DeviceProcessor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cyberkv("model", "add", add_tiny("other", "qwen2"))
    monkeypatch.setattr(choice, "look", lambda: SEEN)
    monkeypatch.setattr(backends, "unsupported", lambda *_, **__: None)
    monkeypatch.setattr(backends, "installed_here", lambda: frozenset({"triton"}))
    held: list[weakref.ref[Any]] = []
    probe, make_pool, open_device = engine.probe, DeviceProcessor.engine_pool, choice.open_device

    def noted(*given: Any) -> DevicePool:
        held.append(weakref.ref(pool := make_pool(*given)))
        return pool

    def probe_on(decoder: Any, processor: Any, geometry: Any) -> Any:
        if processor.kind:
            held.append(weakref.ref(decoder))
            return replace(SOUND, broken=broken)
        return probe(decoder, processor, geometry)

    def open_one(*given: Any, **options: Any) -> DeviceProcessor:
        assert [each() for each in held] == [None] * len(held)
        return open_device(*given, **options)

    monkeypatch.setattr(DeviceProcessor, "engine_pool", noted)
    monkeypatch.setattr(engine, "probe", probe_on)
    monkeypatch.setattr(choice, "open_device", open_one)
    result = cyberkv("--json", "doctor", ok=False)
    assert (result.exit_code, len(result.json["problems"])) == ((5, 2) if broken else (0, 0)), result
    assert len(held) == (2 if broken else 4)


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


def test_what_only_a_device_would_use_is_refused_where_none_is_asked_for(
    cyberkv: Command, no_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ("--device-memory", "1GiB")
    for line in (RUN + memory, (*RUN, *memory, "--device", "cpu"), ("serve", "--chat", *memory)):
        assert "--device cuda or auto" in cyberkv.error(2, *line)["message"]
    assert "belongs to --chat" in cyberkv.error(2, "serve", "--device", "cuda")["message"]
    monkeypatch.setenv("CYBERKV_DEVICE", "cuda")
    assert cyberkv.error(3, *RUN, *memory)["kind"] == "not-found"  # asked for, and not there
    # For other commands: `serve` without --chat goes past it, to what is asked of it next.
    assert "--tls-cert" in cyberkv.error(2, "serve", "--tls-key", __file__)["message"]
