"""`doctor`: what it finds, and when it calls something broken."""

import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cyberkv.cli import accelerator, peers_known, scope, tier_speeds
from cyberkv.cli.context import Session
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.peers.base import Peer, not_held
from cyberkv.cybergraph.store.format import FORMAT
from cyberkv.runtime import canonical, engine
from cyberkv.runtime.cuda import backends as cuda_backends
from cyberkv.runtime.cuda import choice
from tests import once
from tests.cli.conftest import Command


def test_a_sound_home(story: Command, request: pytest.FixtureRequest) -> None:
    found = story.json("doctor")
    assert set(found) == {
        "versions", "machine", "device", "home", "models", "tiers", "kubo", "peers", "parts", "absent", "problems",
    }  # fmt: skip
    assert found["problems"] == []
    assert found["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert set(found["versions"]) >= {"python", "cyberkv", "lmdb", "blake3", "tokenizers", "transformers"}
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert (found["home"]["exists"], found["home"]["format"]) == (True, FORMAT.strip())
    assert found["home"]["conversations"] == 1
    assert found["home"]["free_bytes"] > 0
    [model] = found["models"]
    assert (model["name"], model["seals"], model["reason"]) == ("tiny", True, None)
    assert model["domain"] in story.json("stats")["domains"]
    assert not any("sharing" in each or "discovery" in each for each in found["absent"])  # they are there
    request.getfixturevalue("answers_once")
    page = story("doctor").stdout
    assert model["domain"] in page
    assert "nothing is broken" in page
    assert "Kubo" in page


def test_without_a_device_the_processor_computes_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = accelerator.device()
    assert (here["name"], here["capability"]) == ("cpu", None)
    assert accelerator.device_in_words(here).startswith("cpu: no CUDA device: ")


@pytest.mark.usefixtures("answers_once")
def test_who_computes_on_a_device_and_why(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = choice.Seen("Some GPU", capability=90, memory_bytes=1 << 30)
    monkeypatch.setattr(choice, "look", lambda: seen)
    monkeypatch.setattr(cuda_backends, "installed_here", lambda: frozenset({"triton"}))
    found = story.json("doctor")
    assert found["device"] == {"name": "Some GPU", "capability": 90, "reason": None}
    chosen = found["models"][0]["backends"]
    refused = chosen["canonical"]  # heads of 16: not what the kernels take
    assert refused == chosen["provisional"]
    assert (refused["name"], "head_dim" in refused["reason"]) == ("cpu", True)
    page = story("doctor").stdout
    assert "Some GPU, capability 90" in page
    assert f"  cpu: {refused['reason']}" in page
    differing = accelerator.backends_in_words({**chosen, "provisional": {"name": "triton", "reason": "so"}})
    assert differing[1] == "provisional rows by triton: so"


@pytest.mark.usefixtures("answers_once")
def test_a_signed_conversation_is_published_once(story: Command) -> None:
    story("publish", "story", "--public", "--sign", "--yes")
    assert story.json("doctor")["home"]["published"] == story.json("stats")["published"] == 1


def test_the_thread_count_is_put_back(story: Command, request: pytest.FixtureRequest) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert story.json("doctor")["machine"]["thread_gain"] > 0
        assert torch.get_num_threads() == 2
        request.getfixturevalue("answers_once")
        torch.set_num_threads(1)
        assert story.json("doctor")["machine"]["thread_gain"] is None
    finally:
        torch.set_num_threads(before)


def test_without_a_home_nothing_is_broken_and_nothing_made(tmp_path: Path) -> None:
    found = Command(tmp_path / "none").json("doctor")
    assert (found["home"]["exists"], found["models"], found["problems"]) == (False, [], [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("answers_once")
def test_a_model_that_changed_is_broken_and_named(story: Command, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in tiny_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    story("model", "add", folder, "--name", "copy")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors")
    result = story("--json", "doctor", ok=False)
    assert result.exit_code == 5
    [problem] = result.json["problems"]
    assert (problem["kind"], "weights" in problem["message"]) == ("identity-mismatch", True)
    models = {model["name"]: model for model in result.json["models"]}
    assert (models["copy"]["seals"], models["tiny"]["seals"]) == (False, True)
    assert "broken: model copy" in story("doctor", ok=False).stdout


def test_a_machine_where_the_rule_does_not_hold_seals_nothing(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def naive(*parts: object) -> canonical.Domain:
        return canonical.probe(*parts, step=off_in_short_steps)  # type: ignore[arg-type]

    def off_in_short_steps(decoder, sequence, tokens, start):  # type: ignore[no-untyped-def]
        """Like an engine that computes a short step in another way than a long one."""
        return canonical.canonical_step(decoder, sequence, [token + (len(tokens) == 16) for token in tokens], start)

    monkeypatch.setattr(engine, "probe", naive)
    result = story("--json", "doctor", ok=False)
    assert result.exit_code == 5
    assert [problem["kind"] for problem in result.json["problems"]] == ["unsafe-numerics"]
    [model] = result.json["models"]
    assert (model["seals"], model["domain"]) == (False, None)
    assert "gave other bytes" in model["reason"]


@pytest.mark.usefixtures("answers_once")
def test_a_store_of_a_newer_version_is_broken(story: Command) -> None:
    (story.home / "store" / "FORMAT").write_text("cyberkv store 99\n")
    result = story("--json", "doctor", ok=False)
    assert result.exit_code == 5
    assert [problem["kind"] for problem in result.json["problems"]] == ["unsupported-format"]
    assert result.json["home"] is None


def test_what_is_real_here_and_what_is_not(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
        return {part["name"]: (part["state"], part["note"]) for part in found["parts"]}

    steps, passages = "many conversations in one step, drafts", "finding passages by meaning (retrieve)"
    with monkeypatch.context() as patch:
        once.remember_answers(patch)
        before = states(story.json("doctor"))
    assert before[steps][0] == "real"
    assert {state for state, _ in before.values()} <= {"real", "approximate", "optional", "off", "absent"}
    monkeypatch.setattr(scope, "find_spec", lambda _: None)
    monkeypatch.setattr(canonical, "try_shared_steps", lambda *_: False)
    found = story.json("doctor")
    after = states(found)
    assert after[passages] == ("optional", "not installed: pip install 'cyberkv[retrieval]'")
    assert after[steps][0] == "off"
    assert "tiny: rows of two conversations" in after[steps][1]
    assert found["models"][0]["seals"]  # it does not keep a conversation alone from being recorded
    page = story("doctor").stdout
    assert "computing on accelerators" in page
    assert "cyberkv[retrieval]" in page


@pytest.mark.usefixtures("answers_once")
def test_each_tier_is_timed(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    tiers = story.json("doctor")["tiers"]
    assert [each["tier"] for each in tiers] == ["L0", "L1", "L2"]
    assert all(each["latency_s"] > 0 and each["bytes"] == 16 * 3 * 2 * 2 * 16 * 4 for each in tiers)
    assert elsewhere.json("doctor")["tiers"] == []  # the control: no block, nothing to time
    assert "no block here to time" in elsewhere("doctor").stdout
    car = tmp_path / "story.car"
    root = story.json("publish", "story", "--public", "--yes", "--car", car)["root"]
    elsewhere("fetch", root, "--from", car, "--trust", "unsigned")
    found = elsewhere.json("doctor", "--from", car)
    assert [each["tier"] for each in found["tiers"]] == ["L0", "L1", "L2", "L3"]
    assert "L3" in elsewhere("doctor", "--from", car).stdout


@pytest.mark.usefixtures("answers_once")
def test_a_private_block_is_named_to_nobody(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Cid] = []

    class Listening(Peer):
        name = "listening"

        def read_many(self, cids: Any, room: Any) -> Any:
            asked.extend(cids)
            raise not_held(self.name, cids)

        def close(self) -> None: ...

    for module in (peers_known, tier_speeds):
        monkeypatch.setattr(module, "open_source", lambda *_, **__: Listening())
    assert [each["tier"] for each in story.json("doctor", "--from", "http://x")["tiers"]] == ["L0", "L1", "L2"]
    assert asked == [peers_known.NOBODYS]
    story("publish", "story", "--public", "--yes")
    story("doctor", "--from", "http://x")
    assert len(asked) > 2  # the control: what is public may be asked for


@pytest.mark.usefixtures("answers_once")
def test_a_peer_that_is_down_is_said_with_the_age_of_what_is_believed(
    story: Command, elsewhere: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    car = tmp_path / "story.car"
    root = story.json("publish", "story", "--public", "--yes", "--car", car)["root"]
    elsewhere("fetch", root, "--from", car, "--trust", "unsigned")
    gave = elsewhere.json("list")["conversations"][0]["created"]
    later = datetime.fromisoformat(gave) + timedelta(hours=3)
    monkeypatch.setattr(Session, "now", lambda _: later.strftime("%Y-%m-%dT%H:%M:%SZ"))
    [known] = elsewhere.json("doctor")["peers"]
    assert (known["source"], known["gave"], known["age_s"]) == (str(car), gave, 3 * 3600)
    assert (known["state"], "the last 3.0 h ago; not asked" in known["words"]) == ("not asked", True)
    assert elsewhere.json("doctor", "--peers")["peers"][0]["state"] == "answers"
    car.unlink()
    result = elsewhere("--json", "doctor", "--peers", ok=False)
    assert result.exit_code != 0
    [down] = result.json["peers"]
    assert (down["state"], down["age_s"]) == ("down", 3 * 3600)
    assert elsewhere.json("doctor")["peers"][0]["state"] == "not asked"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        result = elsewhere("doctor", "--from", f"127.0.0.1:{port}", ok=False)
    assert result.exit_code == 7
    assert f"peer 127.0.0.1:{port}: gave nothing so far; down" in result.stdout
    assert "nothing is broken" not in result.stdout
    assert "healthy" not in result.stdout
