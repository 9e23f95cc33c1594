"""Model cards as files: written with what they list, loaded only from who is trusted, and only what they are for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.car import read_car, write_car
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import ModelCard
from cyberkv.cybergraph.store import DiskStore
from fixtures.golden import MODEL as GOLDEN_MODEL
from fixtures.make import FOLDER
from tests.cli.conftest import STORY, Command

MORE = " And then?"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiny.model"


@pytest.fixture
def card(story: Command, file: Path) -> dict[str, Any]:
    """`story` in a card of its model."""
    answer: dict[str, Any] = story.json("model", "card", "tiny", "story", file, "--licence", "MIT", "--yes")
    return answer


def nothing_recorded(command: Command) -> None:
    assert command.json("list")["conversations"] == []


def test_a_card_holds_its_model_and_all_that_it_lists(story: Command, card: dict[str, Any], file: Path) -> None:
    root, model = story.json("show", "story")["cid"], story.json("model", "show", "tiny")["cid"]
    assert (card["roots"], card["model"], card["name"], card["licence"]) == ([root], model, "tiny", "MIT")
    with file.open("rb") as data:
        blocks = dict(reader := read_car(data))
        assert reader.roots == (Cid.parse(card["card"]),)
    with DiskStore(story.home / "store", read_only=True) as store:
        assert blocks.keys() == {Cid.parse(card["card"]), *closure(store, Cid.parse(root))}
    node = ModelCard.decode(blocks[Cid.parse(card["card"])])
    assert node.signature is not None
    assert node.signature.signer.hex() == card["signed_by"]
    assert card["blocks"] == len(blocks)
    story("fsck")
    again = story.json("model", "card", "tiny", "story", file, "--licence", "MIT", "--yes")
    assert again == card


def test_what_it_lists_is_loaded_and_gone_on_from(
    story: Command, elsewhere: Command, card: dict[str, Any], file: Path
) -> None:
    public = story.json("key", "show")["public"]
    loaded = elsewhere.json("model", "preload", file, "--trust", public)
    [conversation] = loaded["conversations"]
    assert (conversation["root"], conversation["name"]) == (card["roots"][0], "story")
    assert (conversation["blocks_had"], loaded["licence"]) == (1, "MIT"), "the model itself was here"
    assert loaded["signed_by"] == [{"key": card["signed_by"], "label": "", "trusted": True}]
    again = elsewhere.json("model", "preload", card["card"])  # it is all here, and the signer trusted
    assert again["conversations"][0]["blocks_fetched"] == 0
    assert elsewhere.json("verify", "story")["failed"] == []
    fresh = elsewhere.json("prefill", "-", "--name", "next", stdin=STORY + MORE)
    assert fresh["tokens_reused"] == 80, "every full block of what was loaded"
    elsewhere("trust", "remove", card["signed_by"])
    assert elsewhere.error(5, "run", MORE, "--from", "story")["kind"] == "untrusted"


def test_only_who_is_trusted_decides_what_is_loaded(elsewhere: Command, card: dict[str, Any], file: Path) -> None:
    error = elsewhere.error(5, "model", "preload", file)
    assert (error["kind"], error["signers"]) == ("untrusted", [card["signed_by"]])
    assert "--trust" in error["hint"]
    nothing_recorded(elsewhere)
    elsewhere("key", "new")
    own = elsewhere.json("key", "show")["public"]
    assert elsewhere.error(5, "model", "preload", file, "--trust", own)["kind"] == "untrusted"
    nothing_recorded(elsewhere)
    elsewhere("model", "preload", file, "--trust", "unsigned")
    assert elsewhere.json("prefill", "-", "--from", "story", stdin=MORE)["tokens_reused"] == 85


def rewritten(file: Path, change: Callable[[ModelCard], ModelCard]) -> Path:
    with file.open("rb") as data:
        [(cid, card), *rest] = read_car(data)
    altered = change(ModelCard.decode(card, verify=cid))
    path = file.with_name(f"{altered.cid()}.model")
    with path.open("wb") as out:
        write_car(out, [altered.cid()], [(altered.cid(), altered.encode()), *rest])
    return path


def test_an_unsigned_and_a_forged_card(elsewhere: Command, card: dict[str, Any], file: Path) -> None:
    elsewhere("trust", "add", card["signed_by"])
    unsigned = rewritten(file, lambda node: replace(node, signature=None))
    error = elsewhere.error(5, "model", "preload", unsigned)
    assert (error["kind"], error["signers"]) == ("untrusted", [])
    forged = rewritten(file, lambda node: replace(node, licence="none"))
    for words in ([], ["--trust", "unsigned"]):
        assert elsewhere.error(4, "model", "preload", forged, *words)["kind"] == "bad-signature"
    nothing_recorded(elsewhere)
    assert elsewhere.json("model", "preload", unsigned, "--trust", "unsigned")["signed_by"] == []
    elsewhere("prefill", "-", "--from", "story", stdin=MORE)


def test_a_tampered_block_is_refused_by_name(elsewhere: Command, card: dict[str, Any], file: Path) -> None:
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    error = elsewhere.error(4, "model", "preload", file, "--trust", card["signed_by"])
    assert error["kind"] == "digest-mismatch"
    assert Cid.parse(error["cid"]).codec == "raw"
    nothing_recorded(elsewhere)
    file.write_bytes(sound)
    [conversation] = elsewhere.json("model", "preload", file)["conversations"]
    assert conversation["blocks_had"] > 0, "what was checked is not brought again"


def test_a_card_for_a_model_that_is_not_here_is_refused_by_axis(
    cyberkv: Command, tmp_path: Path, add_tiny: Callable[..., Path]
) -> None:
    golden = FOLDER / "golden.model"
    error = cyberkv.error(5, "model", "preload", golden, "--trust", "unsigned")
    assert (error["kind"], error["field"]) == ("identity-mismatch", "weights")
    assert str(GOLDEN_MODEL.cid()) in error["message"]
    bare = Command(tmp_path / "bare")
    assert bare.error(3, "model", "preload", golden, "--trust", "unsigned")["kind"] == "not-found"
    other = add_tiny("other", rope_theta=5000.0)
    cyberkv("model", "add", other, "--name", "other")
    cyberkv("prefill", "-", "--name", "talk", "--model", "other", stdin=STORY)
    error = cyberkv.error(5, "model", "card", "tiny", "talk", tmp_path / "x.model", "--yes")
    root = cyberkv.json("show", "talk")["cid"]
    assert (error["kind"], error["cid"]) == ("identity-mismatch", root)
    assert not (tmp_path / "x.model").exists()


def test_what_is_private_is_shown_and_asked_for(story: Command, file: Path) -> None:
    result = story("--json", "model", "card", "tiny", "story", file, ok=False)
    assert result.exit_code == 5
    assert STORY in result.stderr
    assert result.json["error"]["hint"].endswith("--yes")
    assert not file.exists()
    story("publish", "story", "--public", "--yes")
    public = story("model", "card", "tiny", "story", file)
    assert STORY not in public.stderr
    assert file.exists()


def test_of_private_marks_only_what_comes_before_goes_in(story: Command, elsewhere: Command, file: Path) -> None:
    story("mark", "story", "--public", "0:40", "--private", "40:85")
    made = story.json("model", "card", "tiny", "story", file, "--yes")
    assert made["withheld"]
    assert STORY[60:].encode() not in file.read_bytes()
    elsewhere("model", "preload", file, "--trust", made["signed_by"])
    [conversation] = elsewhere.json("list")["conversations"]
    assert conversation["tokens"] == 40


def test_what_nobody_vouches_for_here_is_not_vouched_for(
    story: Command, elsewhere: Command, card: dict[str, Any], file: Path, tmp_path: Path
) -> None:
    car = tmp_path / "story.car"
    story("publish", "story", "--public", "--yes", "--no-sign", "--car", car)
    elsewhere("fetch", card["roots"][0], "--from", car)
    other = tmp_path / "other.model"
    assert elsewhere.error(5, "model", "card", "tiny", "story", other, "--yes")["kind"] == "untrusted"
    assert not other.exists()
    assert elsewhere.json("model", "card", "tiny", other)["roots"] == []


def test_another_card_is_not_written_over(story: Command, card: dict[str, Any], file: Path) -> None:
    before = file.read_bytes()
    error = story.error(5, "model", "card", "tiny", file, "--yes")
    assert "holds something else" in error["message"]
    assert file.read_bytes() == before
    assert story.error(2, "model", "card", "tiny", file, "--licence", "x" * 129)


def test_what_is_no_card_is_refused(story: Command, card: dict[str, Any], tmp_path: Path) -> None:
    car = tmp_path / "story.car"
    story("publish", "story", "--public", "--yes", "--no-sign", "--car", car)
    assert "is a cyberkv/conversation" in story.error(2, "model", "preload", car)["message"]
    story.error(3, "model", "preload", tmp_path / "nowhere.model")
    root = card["roots"][0]
    other = root[:-1] + ("e" if root.endswith("a") else "a")
    assert story.error(3, "model", "preload", other)["kind"] == "block-not-found"
