"""`doctor`: what it finds, and when it calls something broken."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cyberkv.cybergraph.store.format import FORMAT
from cyberkv.runtime import canonical, engine
from cyberkv.runtime.canonical import single_step
from tests.cli.conftest import Command


def test_a_sound_home(story: Command) -> None:
    found = story.json("doctor")
    assert set(found) == {"versions", "machine", "home", "models", "kubo", "absent", "problems"}
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
    page = story("doctor").stdout
    assert model["domain"] in page
    assert "nothing is broken" in page
    assert "Kubo" in page


def test_a_signed_conversation_is_published_once(story: Command) -> None:
    story("publish", "story", "--public", "--sign", "--yes")
    assert story.json("doctor")["home"]["published"] == story.json("stats")["published"] == 1


def test_the_thread_count_is_put_back(story: Command) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert story.json("doctor")["machine"]["thread_gain"] > 0
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert story.json("doctor")["machine"]["thread_gain"] is None
    finally:
        torch.set_num_threads(before)


def test_without_a_home_nothing_is_broken_and_nothing_made(tmp_path: Path) -> None:
    found = Command(tmp_path / "none").json("doctor")
    assert (found["home"]["exists"], found["models"], found["problems"]) == (False, [], [])
    assert list(tmp_path.iterdir()) == []


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
        return canonical.probe(*parts, step=single_step_or_all)  # type: ignore[arg-type]

    def single_step_or_all(decoder, sequence, tokens, start):  # type: ignore[no-untyped-def]
        """Like an engine that computes a short step in another way than a long one."""
        step = single_step if len(tokens) == 16 else canonical.canonical_step
        return step(decoder, sequence, tokens, start)

    monkeypatch.setattr(engine, "probe", naive)
    result = story("--json", "doctor", ok=False)
    assert result.exit_code == 5
    assert [problem["kind"] for problem in result.json["problems"]] == ["unsafe-numerics"]
    [model] = result.json["models"]
    assert (model["seals"], model["domain"]) == (False, None)
    assert "gave other bytes" in model["reason"]


def test_a_store_of_a_newer_version_is_broken(story: Command) -> None:
    (story.home / "store" / "FORMAT").write_text("cyberkv store 99\n")
    result = story("--json", "doctor", ok=False)
    assert result.exit_code == 5
    assert [problem["kind"] for problem in result.json["problems"]] == ["unsupported-format"]
    assert result.json["home"] is None
