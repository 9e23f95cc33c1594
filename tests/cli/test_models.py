"""`model` and `size`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from tests.cli.conftest import Command

IDENTITY = {
    "type",
    "version",
    "weights",
    "tokenizer",
    "chat_template",
    "rope",
    "attention",
    "block_size",
    "rule",
}


def test_add_gives_the_name_the_cid_and_every_axis(tiny_folder: Path, cyberkv: Command) -> None:
    added = cyberkv.json("model", "add", tiny_folder, "--name", "again", "--block-size", "32")
    assert set(added) == {"name", "cid", "kv_relative_error", "identity"}
    assert added["kv_relative_error"] == 0
    assert added["name"] == "again"
    assert set(added["identity"]) >= IDENTITY
    assert added["identity"]["block_size"] == 32
    assert cyberkv.json("show", added["cid"])["node"] == added["identity"]
    assert cyberkv.json("model", "show", "again") == added


def test_list_names_what_was_added(cyberkv: Command) -> None:
    [model] = cyberkv.json("model", "list")["models"]
    assert model["name"] == "tiny"
    assert model["cid"] == cyberkv.json("model", "show", "tiny")["cid"]
    assert model["cid"] in cyberkv("model", "list").stdout


def test_a_model_is_found_by_name_cid_beginning_and_conversation(story: Command) -> None:
    cid = story.json("model", "show", "tiny")["cid"]
    for ref in (cid, cid[:12], "story", story.json("show", "story")["cid"]):
        assert story.json("model", "show", ref)["cid"] == cid
    block = story("walk", "story", "--json").lines[0]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    for ref in (block, leaf, leaf[:20]):
        assert "not a model" in story.error(2, "model", "show", ref)["message"]
    assert "cyberkv model list" in story.error(3, "model", "show", "nosuch")["hint"]


def test_diff_names_each_differing_axis_with_both_values(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    cyberkv("model", "add", add_tiny("other", seed=1, rope_theta=500_000.0), "--block-size", "8")
    differs = {each["field"]: each for each in cyberkv.json("model", "diff", "tiny", "other")["differs"]}
    assert set(differs) >= {"weights", "block_size"}
    assert (differs["block_size"]["a"], differs["block_size"]["b"]) == (16, 8)
    page = cyberkv("model", "diff", "tiny", "other").stdout
    assert differs["weights"]["a"] in page
    assert differs["weights"]["b"] in page
    assert cyberkv.json("model", "diff", "tiny", "tiny")["differs"] == []
    assert "the same model" in cyberkv("model", "diff", "tiny", "tiny").stdout


def test_what_cannot_be_a_model_is_refused_by_name(cyberkv: Command, tmp_path: Path) -> None:
    for absent in (tmp_path / "absent", "x" * 300, "x/" * 3000):
        assert cyberkv.error(3, "model", "add", absent)["path"]
        Command(tmp_path / "none").error(3, "model", "add", absent)
    assert not (tmp_path / "none").exists()
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    error = cyberkv.error(5, "model", "add", folder)
    assert (error["kind"], error["field"]) == ("unsupported-model", "architectures")
    assert len(cyberkv.json("model", "list")["models"]) == 1


def test_size_is_exact(cyberkv: Command) -> None:
    # 3 layers, K and V, 2 heads of 16 elements of 4 bytes.
    per_token = 3 * 2 * 2 * 16 * 4
    size = cyberkv.json("size", "tiny", 85)
    assert size["bytes_per_token"] == per_token
    assert size["bytes"] == 85 * per_token
    assert (size["blocks"], size["tail_tokens"]) == (5, 5)
    assert size["leaves"] == 5
    assert f"{size['bytes']:,} B" in cyberkv("size", "tiny", 85).stdout


def test_size_agrees_with_what_a_recording_takes(story: Command) -> None:
    size = story.json("size", "tiny", 85)
    stats = story.json("stats")
    assert stats["leaf_bytes"] == size["bytes"]
    assert stats["leaves"] == size["leaves"] + size["tail_leaves"]


def test_break_even_divides_fetch_from_prefill(cyberkv: Command) -> None:
    links = cyberkv.json("size", "tiny", 1000)["break_even"]
    assert [link["link_mbit"] for link in links] == [10, 100, 1000, 10_000]
    assert all(link["faster"] is None for link in links)
    [link] = cyberkv.json("size", "tiny", 1000, "--link", 8)["break_even"]
    assert link["fetch_s"] == pytest.approx(0.768)
    assert link["prefill_tok_s"] == pytest.approx(1000 / 0.768)
    assert "faster here" not in cyberkv("size", "tiny", 1000).stdout
    assert "faster here" in cyberkv("size", "tiny", 1000, "--prefill-tok-s", 5).stdout
    for bad in ("nan", "inf", "0"):
        assert cyberkv.error(2, "size", "tiny", 1000, "--link", bad)["kind"] == "usage"
    for speed, faster in ((1302, "fetch"), (1303, "prefill")):
        [link] = cyberkv.json("size", "tiny", 1000, "--link", 8, "--prefill-tok-s", speed)["break_even"]
        assert link["faster"] == faster


def test_size_needs_only_the_config_of_a_model(cyberkv: Command, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    assert cyberkv.json("size", tmp_path, 85) == cyberkv.json("size", "tiny", 85)
    assert cyberkv.error(3, "size", "nosuch", 1)["kind"] == "name-not-found"
    absent = str(Cid.of(b"absent", "dag-cbor", "sha2-256"))
    assert cyberkv.error(3, "size", absent, 1)["kind"] == "block-not-found"


def test_without_models_the_list_says_how_to_add_one(cyberkv: Command) -> None:
    assert "no models yet" not in cyberkv("model", "list").stdout  # the control
    (cyberkv.home / "models" / "tiny.json").unlink()
    assert cyberkv.json("model", "list")["models"] == []
    assert "no models yet; `cyberkv model add smollm2`" in cyberkv("model", "list").stdout


def test_a_card_file_is_shown_with_its_model(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    file = tmp_path / "tiny.model"
    card = story.json("model", "card", "tiny", "story", file, "--licence", "MIT", "--yes")
    shown = elsewhere.json("model", "show", file)
    assert shown["card"] == {
        "cid": card["card"], "name": "tiny", "licence": "MIT", "signed_by": card["signed_by"], "lists": card["roots"],
    }  # fmt: skip
    assert {key: value for key, value in shown.items() if key != "card"} == elsewhere.json("model", "show", "tiny")
    assert card["signed_by"] in elsewhere("model", "show", file).stdout
    nowhere = Command(tmp_path / "none")
    assert nowhere.json("model", "show", file)["name"] is None
    assert "not registered here" in nowhere("model", "show", file).stdout
    data = file.read_bytes()
    file.write_bytes(data.replace(b"MIT", b"BSD"))
    assert elsewhere.error(4, "model", "show", file)["kind"] == "digest-mismatch"


def test_a_second_set_of_options_gets_a_name_of_its_own(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    folder = add_tiny("twin")
    line = ["model", "add", folder]
    plain = cyberkv.json(*line)
    assert plain["name"] == "twin"
    assert cyberkv.json(*line)["name"] == "twin"  # control: the same again is the same
    for options, name in (
        (["--kv-quant", "int8"], "twin-int8"),
        (["--block-size", 64], "twin-64"),
        (["--block-size", 64, "--dtype", "bf16"], "twin-64-bf16"),
        (["--leaf-hash", "sha2-256"], "twin-sha2-256"),
    ):
        added = cyberkv.json(*line, *options)
        assert added["name"] == name
        assert added["cid"] != plain["cid"]
        assert cyberkv.json(*line, *options)["name"] == name
    assert cyberkv.json("model", "show", "twin") == plain
    assert cyberkv.error(5, *line, "--block-size", 64, "--name", "twin")["name"] == "twin"  # a name that was asked for


def test_beside_a_quantised_model_the_plain_one_is_named_so(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    folder = add_tiny("twin")
    assert cyberkv.json("model", "add", folder, "--kv-quant", "int8")["name"] == "twin"
    assert cyberkv.json("model", "add", folder)["name"] == "twin-plain"


def test_the_default_name_of_another_model_is_not_taken(
    cyberkv: Command, add_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    cyberkv("model", "add", add_tiny("one"), "--name", "two")
    assert cyberkv.error(5, "model", "add", add_tiny("two", seed=1))["name"] == "two"


def test_what_is_broken_is_added_again_with_its_options(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    folder = add_tiny("twin")
    cyberkv("model", "add", folder)
    cyberkv("model", "add", folder, "--block-size", 64)
    (folder / "config.json").unlink()
    folder.rename(folder.with_name("gone"))
    hints = {each["hint"] for each in cyberkv("--json", "doctor", ok=False).json["problems"]}
    again = f"register it again: `cyberkv model add {folder} --name twin"
    assert hints == {f"{again}`", f"{again}-64 --block-size 64`"}


def test_quiet_adding_says_the_name_and_the_cid(cyberkv: Command, tiny_folder: Path) -> None:
    line = ["model", "add", tiny_folder, "--name", "tiny"]
    quiet = cyberkv("-q", *line).stdout.splitlines()
    assert [row.split()[0] for row in quiet] == ["name", "cid"]
    assert "weights" in cyberkv(*line).stdout  # the control
