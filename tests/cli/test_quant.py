"""A quantised model from the command line: everything that works with a conversation works with one of it."""

import shutil
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from tests import once
from tests.cli.conftest import STORY, Command

SCHEME = "int8/row/f32"


@pytest.fixture(scope="module")
def quantised_home(tmp_path_factory: pytest.TempPathFactory, first_home: Path, tiny_folder: Path) -> Path:
    """A home that knows `tiny` and, quantised, `small`, with one text recorded by both."""
    home = shutil.copytree(first_home, tmp_path_factory.mktemp("quantised") / "home")
    command = Command(home)
    command("model", "add", tiny_folder, "--name", "small", "--kv-quant", "int8")
    with once.remembering():
        for model in ("tiny", "small"):
            command("prefill", "-", "--model", model, "--name", f"by-{model}", stdin=STORY)
    return home


@pytest.fixture
def quantised(quantised_home: Path, tmp_path: Path) -> Command:
    return Command(shutil.copytree(quantised_home, tmp_path / "home"))


@pytest.fixture
def reader(tmp_path: Path) -> Command:
    return Command(tmp_path / "reader")


def test_it_is_shown_listed_and_told_apart(quantised: Command, tiny_folder: Path) -> None:
    small = quantised.json("model", "show", "small")
    assert small["identity"]["kv_quant_scheme"] == SCHEME
    assert small["kv_relative_error"] == 1 / 254
    assert "1/254" in quantised("model", "show", "small").stdout
    assert "1/254" not in quantised("model", "show", "tiny").stdout
    schemes = {each["name"]: each["kv_quant_scheme"] for each in quantised.json("model", "list")["models"]}
    assert schemes == {"tiny": "none", "small": SCHEME}
    assert quantised("model", "list").stdout.count(SCHEME) == 1
    [differs] = quantised.json("model", "diff", "tiny", "small")["differs"]
    assert differs == {"field": "kv_quant_scheme", "a": "none", "b": SCHEME}

    error = quantised.error(5, "model", "add", tiny_folder, "--name", "half", "--kv-quant", "int8", "--dtype", "bf16")
    assert (error["kind"], error["field"]) == ("unsupported-model", "kv_quant_scheme")
    error = quantised.error(5, "run", "--from", "by-small", "--model", "tiny", "--max-tokens", "1", "x")
    assert (error["kind"], error["field"]) == ("identity-mismatch", "kv_quant_scheme")
    error = quantised.error(5, "model", "add", tiny_folder, "--name", "tiny", "--kv-quant", "int8")
    assert "belongs to model" in error["message"]


def test_sizes_are_those_of_what_is_recorded(quantised: Command) -> None:
    per_token = 3 * 2 * 2 * (16 + 4)  # 3 layers, K and V, 2 heads of 16 integers and a scale of 4 bytes
    size = quantised.json("size", "small", 85)
    assert size["bytes_per_token"] == per_token
    roots = {name: quantised.json("show", f"by-{name}")["node"]["bytes"] for name in ("tiny", "small")}
    assert roots["small"] == size["bytes"] == 85 * per_token
    assert roots["small"] / roots["tiny"] == 20 / 64
    assert quantised("verify", "by-small").exit_code == 0
    assert quantised("fsck").exit_code == 0


def test_it_travels_and_goes_on_with_the_same_words(quantised: Command, reader: Command, tmp_path: Path) -> None:
    shutil.copytree(quantised.home / "models", reader.home / "models")
    published = quantised.json("publish", "by-small", "--public", "--yes", "--car", tmp_path / "out.car")
    got = reader.json("fetch", published["root"], "--from", tmp_path / "out.car", "--trust", "unsigned")
    assert got["root"] == quantised.json("show", "by-small")["cid"]
    ours, theirs = (
        each.json("run", "--from", published["root"], "--max-tokens", "12", "--name", "more", " Then")
        for each in (quantised, reader)
    )
    assert ours["text"] == theirs["text"]
    assert reader("verify", published["root"]).exit_code == 0


def test_it_is_sealed_and_opened(quantised: Command, reader: Command, tmp_path: Path) -> None:
    key = reader.json("key", "new")["public"]
    sealed = quantised.json("publish", "by-small", "--to", key, "--car", tmp_path / "sealed.car")
    got = reader.json("fetch", sealed["root"], "--from", tmp_path / "sealed.car")
    assert got["root"] == quantised.json("show", "by-small")["cid"]
    assert reader("fsck").exit_code == 0


def test_a_damaged_leaf_is_found(quantised: Command) -> None:
    block = quantised("walk", "by-small", "--json").lines[0]["cid"]
    [leaf] = quantised.json("show", block)["node"]["kv"]
    assert Cid.parse(leaf).codec == "raw"
    quantised.damage(leaf)
    assert quantised("verify", "by-small", ok=False).exit_code == 4
    assert quantised("verify", "by-tiny").exit_code == 0  # control: the other lane's leaves are others


def test_it_is_cut_forked_and_evicted_from(quantised: Command) -> None:
    quantised("reblock", "by-small", "--block-size", "32", "--name", "coarse")
    quantised("fork", "by-small", "--at", "40", "--name", "short")
    quantised("evict", "by-small", "20:30", "--mode", "fast")
    for name in ("coarse", "short", "by-small"):
        assert quantised("verify", name).exit_code == 0, name
