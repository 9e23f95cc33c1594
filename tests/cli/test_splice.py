"""`document`, `retrieve` and `splice`, on a small random model and an encoder that counts words."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cyberkv.cli.main import cli
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.runtime.splice import encoder as encoders
from tests import once
from tests.cli.conftest import STORY, Command
from tests.numerics.test_retrieval import WordEncoder

LIGHT = "The lamp of the lighthouse at Northmoor burned whale oil until 1874. " * 6
BREAD = "Flour, water, salt and yeast make a dough that rises for two hours. " * 5

OPEN_REAL = encoders.open_encoder


@pytest.fixture(autouse=True)
def small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "open_encoder", WordEncoder)


@pytest.fixture(scope="module")
def shelf_home(tmp_path_factory: pytest.TempPathFactory, story_home: Path) -> Path:
    home = shutil.copytree(story_home, tmp_path_factory.mktemp("shelf") / "home")
    with once.remembering():
        for name, text in (("light", LIGHT), ("bread", BREAD)):
            Command(home)("document", "add", "-", "--name", name, stdin=text)
    return home


@pytest.fixture
def shelf(shelf_home: Path, tmp_path: Path) -> Command:
    """The command on a home with the conversation `story` and the documents `light` and `bread`."""
    return Command(shutil.copytree(shelf_home, tmp_path / "shelf"))


def test_a_document_is_recorded_once_in_larger_blocks(shelf: Command) -> None:
    listed = {each["name"]: each for each in shelf.json("document", "list")["documents"]}
    assert {name: each["block_size"] for name, each in listed.items()} == {"light": 64, "bread": 64}
    assert listed["light"]["tokens"] == len(LIGHT)
    again = shelf.json("document", "add", "-", stdin=LIGHT)
    assert (again["new"], again["root"]) == (False, listed["light"]["root"])
    node = shelf.json("show", "light")["node"]
    assert (node["block_size"], node["length"]) == (64, len(LIGHT))
    assert shelf.json("document", "text", "light")["content"] == LIGHT
    assert all(file.stat().st_mode & 0o077 == 0 for file in (shelf.home / "documents").iterdir())
    assert shelf("fsck").exit_code == 0


def test_the_text_of_a_document_outlives_gc_until_it_is_removed(shelf: Command) -> None:
    text = shelf.json("document", "list")["documents"][0]["text"]
    shelf("gc")
    assert shelf.json("document", "text", "bread")["content"] == BREAD
    removed = shelf.json("document", "remove", "bread")
    assert removed["text"] == text
    shelf("forget", "bread")
    shelf("gc")
    assert [each["name"] for each in shelf.json("document", "list")["documents"]] == ["light"]
    assert text not in shelf("show", text, ok=False).stdout


@pytest.mark.parametrize("at", [0, 30, len(STORY)])
def test_a_splice_is_exact_by_default(at: int, shelf: Command, elsewhere: Command) -> None:
    made = shelf.json("splice", "story", "light", "bread", "--at", at)
    receipt = made["receipt"]
    assert receipt["exact"]
    assert receipt["mode"] == ("recompute" if at else "prefix")
    assert receipt["verdict"] == ("RECOMPUTE" if at else "HIT")
    assert (f"from token {at} on was computed" if at else "begin the text") in receipt["note"]
    assert receipt["reused_tokens"] == (at // 16 * 16 if at else len(LIGHT) // 64 * 64)
    assert [each["position_start"] for each in receipt["documents"]] == [at, at + len(LIGHT)]
    text = STORY[:at] + LIGHT + BREAD + STORY[at:]
    # The tokenizer of the small model has a token for each byte and puts none around a text.
    cold = elsewhere.json("prefill", "-", "--name", "cold", stdin=text)
    assert cold["tokens_total"] == made["tokens"]
    ours = [step["cid"] for step in shelf("--json", "walk", made["root"]).lines]
    assert ours == [step["cid"] for step in elsewhere("--json", "walk", "cold").lines]
    assert made["approx"] is None
    # The control: fitted in instead, other blocks.
    near = shelf.json("splice", "story", "light", "bread", "--at", at, "--reconcile")
    assert ours != [step["cid"] for step in shelf("--json", "walk", near["root"]).lines]


def test_a_splice_goes_on_from_the_root_whatever_the_index_has(shelf: Command, elsewhere: Command) -> None:
    before = [step["cid"] for step in shelf("--json", "walk", "story").lines]
    with Index(shelf.home / "index") as index:
        assert index.give_up(map(Cid.parse, before)) == 5
    made = shelf.json("splice", "story", "bread", "--at", 70)
    assert made["receipt"]["reused_tokens"] == 64
    text = STORY[:70] + BREAD + STORY[70:]
    elsewhere("prefill", "-", "--name", "cold", stdin=text)
    ours = [step["cid"] for step in shelf("--json", "walk", made["root"]).lines]
    assert ours == [step["cid"] for step in elsewhere("--json", "walk", "cold").lines]
    # The control: the index does not have them.
    assert shelf.json("prefill", "-", "--name", "typed", stdin=text)["tokens_reused"] == 0


def test_an_approximate_splice_says_so_and_is_not_reused(shelf: Command) -> None:
    made = shelf.json("splice", "story", "light", "--at", 30, "--reconcile", "--share", "0.1", "--measure")
    receipt = made["receipt"]
    assert (receipt["mode"], receipt["verdict"], receipt["exact"]) == ("reconcile", "RECONCILED", False)
    assert receipt["note"].startswith("approximate")
    assert receipt["error"]["layers"][0] == {"k": 0.0, "v": 0.0}
    assert receipt["error"]["layers"][1]["k"] > 0
    assert receipt["recomputed_tokens"] + receipt["reused_tokens"] == made["tokens"]
    assert "10% of the documents recomputed" in made["approx"]
    assert "KL" in made["approx"]
    text = STORY[:30] + LIGHT + STORY[30:]
    assert shelf.json("prefill", "-", stdin=text)["tokens_reused"] == 16
    shelf("index", "rebuild")
    assert shelf("fsck").exit_code == 0
    listed = {each["name"]: each for each in shelf.json("list")["conversations"]}
    assert listed[made["name"]]["approx"] == made["approx"]
    onward = shelf.json("run", "And then?", "--from", made["root"], "--max-tokens", 4)
    assert shelf.json("show", onward["root"])["node"]["approx"] == made["approx"]
    into = shelf.json("splice", made["root"], "bread", "--reconcile")
    assert "into: splice" in into["approx"]
    exact = shelf.json("splice", made["root"], "bread", "--at", 40)
    assert exact["approx"] is None


def test_passages_are_found_and_placed(shelf: Command) -> None:
    found = shelf.json("retrieve", "flour and yeast", "-k", 2)["found"]
    assert found[0]["document"] == "bread"
    start, end = found[0]["span"]
    assert found[0]["text"] == BREAD[start:end]
    assert found[0]["score"] >= found[1]["score"]
    by_query = shelf.json("splice", "story", "--query", "flour and yeast", "--at", 10)
    [placed] = by_query["receipt"]["documents"]
    assert (placed["root"], placed["span"]) == (found[0]["root"], [start, end])
    by_ref = shelf.json("splice", "story", found[0]["ref"], "--at", 10)
    assert by_ref["receipt"]["documents"] == by_query["receipt"]["documents"]
    by_name = shelf.json("splice", "story", f"bread:{start}:{end}", "--at", 10)
    assert by_name["receipt"]["documents"] == by_query["receipt"]["documents"]
    shown = shelf("retrieve", "flour and yeast").stdout
    assert f"bread:{start}:{end}" in shown
    assert found[0]["root"] in shown


def test_a_conversation_is_a_document_too_and_a_document_a_conversation(shelf: Command) -> None:
    made = shelf.json("splice", "light", "story")
    assert made["receipt"]["mode"] == "recompute"
    assert made["tokens"] == len(LIGHT) + len(STORY)
    node = shelf.json("show", made["root"])["node"]
    assert node["block_size"] == 16
    near = shelf.json("splice", "light", "story", "--reconcile")
    assert near["receipt"]["verdict"] == "RECONCILED"


@pytest.mark.parametrize("how", [(), ("--reconcile",)])
def test_a_lost_conversation_is_computed_from_its_text(how: Sequence[str], shelf: Command) -> None:
    before = shelf.json("splice", "story", "bread", "--at", 20, *how)
    blocks = [step["cid"] for step in shelf("--json", "walk", before["root"]).lines]
    shelf("forget", "bread")
    shelf("forget", before["name"])
    shelf("gc")
    assert shelf("show", before["receipt"]["documents"][0]["root"], ok=False).exit_code == 3
    after = shelf.json("splice", "story", "bread", "--at", 20, *how)
    assert after["receipt"]["documents"] == before["receipt"]["documents"]
    assert [step["cid"] for step in shelf("--json", "walk", after["root"]).lines] == blocks


def test_refused_by_name(shelf: Command, add_tiny: Callable[..., Path], tmp_path: Path) -> None:
    before = shelf.json("list")
    assert "empty" in shelf.error(2, "document", "add", str(_file(tmp_path, b" \n")))["message"]
    assert "UTF-8" in shelf.error(2, "document", "add", str(_file(tmp_path, b"\xff\xfe\x00")))["message"]
    assert "2,097,152" in shelf.error(2, "document", "add", str(_file(tmp_path, b"x" * 3_000_000)))["message"]
    assert "2048 positions" in shelf.error(2, "document", "add", str(_file(tmp_path, b"x" * 3000)))["message"]
    assert shelf.error(3, "document", "add", "nowhere.txt")["kind"] == "not-found"
    assert "24" in shelf.error(5, "document", "add", str(_file(tmp_path, b"words")), "--block-size", 24)["message"]
    assert shelf.error(3, "document", "text", "nothing")["kind"] == "name-not-found"
    assert shelf.error(3, "splice", "story", "nothing")["kind"] == "name-not-found"
    assert "span 5:5" in shelf.error(2, "splice", "story", "light:5:5")["message"]
    assert "span 0:9999" in shelf.error(2, "splice", "story", "light:0:9999")["message"]
    assert "positions" in shelf.error(2, "splice", "story", *["light"] * 5)["message"]
    assert "cannot place at 999" in shelf.error(2, "splice", "story", "light", "--at", 999)["message"]
    for line in ((), ("light", "--query", "x"), ("--query", " "), ("light", "--measure"), ("light", "--share", "2")):
        assert shelf.error(2, "splice", "story", *line)["kind"] == "usage"
    assert shelf.error(2, "retrieve", " ")["kind"] == "usage"
    assert shelf.json("list") == before
    shelf("model", "add", add_tiny("other", seed=1), "--name", "other")
    shelf("prefill", "-", "--model", "other", "--name", "foreign", stdin=STORY)
    error = shelf.error(5, "splice", "story", "foreign")
    assert (error["kind"], error["field"]) == ("identity-mismatch", "weights")
    assert "skipped light" in shelf("splice", "foreign", "--query", "lamp", ok=False).stderr


def _file(folder: Path, data: bytes) -> Path:
    path = folder / f"file-{len(data)}.txt"
    path.write_bytes(data)
    return path


def test_without_documents_or_the_encoder_it_says_what_to_do(
    story: Command, shelf: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "document add" in story.error(3, "retrieve", "lamp")["hint"]
    monkeypatch.setattr(encoders, "open_encoder", OPEN_REAL)
    monkeypatch.setattr(encoders, "find_spec", lambda name: None)
    error = shelf.error(3, "retrieve", "lamp")
    assert "cyberkv[retrieval]" in error["hint"]
    assert shelf.json("splice", "story", "light")["receipt"]["exact"]


def test_interrupted_nothing_is_named_and_the_home_is_clean(shelf: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from cyberkv.runtime.splice import place

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    before = shelf.json("list")
    for step in ("store_blocks", "reconcile"):
        with monkeypatch.context() as patch:
            patch.setattr(place, step, interrupted)
            result = CliRunner().invoke(cli, ["--home", str(shelf.home), "splice", "story", "light", "--reconcile"])
            assert result.exit_code == 130
    assert shelf.json("list") == before
    assert shelf("fsck").exit_code == 0


@pytest.mark.parametrize("how", [(), ("--reconcile",)])
def test_what_is_private_stays_private_in_a_splice(how: Sequence[str], shelf: Command) -> None:
    fog, oil = STORY.index("the fog"), LIGHT.index("whale oil")
    shelf("mark", "story", "--public", "0:", "--private", f"{fog}:{fog + 7}")
    shelf("splice", "story", "bread", "--at", 30, "--name", "before", *how)
    assert shelf.json("mark", "before")["public_tokens"] == 30  # nothing is said of the document
    shelf("mark", "bread", "--public", "0:")
    shelf("splice", "story", "bread", "--at", 30, "--name", "open", *how)
    assert shelf.json("mark", "open")["public_tokens"] == fog + len(BREAD)
    shelf("mark", "light", "--public", "0:", "--private", f"{oil}:{oil + 9}")
    shelf("splice", "story", "light", "--at", 30, "--name", "lit", *how)
    assert shelf.json("mark", "lit")["public_tokens"] == 30 + oil
    # Where rows come along, what stands behind something private holds it; computed anew, it never saw it.
    shelf("splice", "story", f"light:{oil + 9}:{oil + 60}", "--at", 30, "--name", "part", *how)
    assert shelf.json("mark", "part")["public_tokens"] == (30 if how else fog + 51)


def test_a_document_is_not_locked_while_its_text_is_kept(shelf: Command) -> None:
    root = shelf.json("log", "light")["roots"][-1]["root"]
    shelf("retrieve", "whale oil")
    refused = shelf.error(5, "lock", "light", "--weak")
    assert root in refused["hint"]
    assert shelf.json("document", "text", "light")["content"] == LIGHT
    shelf("document", "remove", root)
    shelf("lock", "light", "--weak")
    shelf("gc")
    assert not any(b"whale oil" in file.read_bytes() for file in shelf.home.rglob("*") if file.is_file())
    shelf("lock", "story", "--weak")  # the control: what is no document is


def test_a_document_can_be_searched_and_gated_like_any_conversation(shelf: Command, tmp_path: Path) -> None:
    found = shelf.json("find", "whale oil")["matches"]
    assert [each["name"] for each in found] == ["light"]
    (tmp_path / "list").write_text("whale oil\n")
    done = shelf.json("evict", "light", f"{len(LIGHT) - 100}:", "--gate", tmp_path / "list", "--mode", "rollback")
    assert done["tokens"] == len(LIGHT) - 100
    assert shelf.json("mark", "bread")["spans"][0]["text"] == BREAD


def test_a_broken_installation_of_the_encoder_says_what_to_do(shelf: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("cannot load a library")

    monkeypatch.setattr(encoders, "open_encoder", OPEN_REAL)
    monkeypatch.setattr(encoders, "MiniLm", broken)
    error = shelf.error(3, "retrieve", "lamp")
    assert "cyberkv[retrieval]" in error["hint"]
