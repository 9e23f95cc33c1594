"""`run --from CID --source PLACE`: what `fetch` and `run` give, in one command that computes while it comes."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.access.trust import TrustFolder
from cyberkv.cybergraph.car import read_car, write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command
from tests.wire.liar import Exchange, lying
from tests.wire.synthetic import contents

PROMPT = "And then?"
WORDS = ("--max-tokens", 20)


@pytest.fixture
def car(story: Command, tmp_path: Path) -> Path:
    path = tmp_path / "story.car"
    story("publish", "story", "--public", "--yes", "--car", path)
    return path


@pytest.fixture
def root(story: Command) -> str:
    cid: str = story.json("show", "story")["cid"]
    return cid


def at_once(command: Command, root: str, car: Path, *more: object) -> dict[str, Any]:
    answer: dict[str, Any] = command.json("run", PROMPT, "--from", root, "--source", car, *WORDS, *more)
    return answer


def blocks(command: Command, ref: object) -> list[str]:
    return [block["cid"] for block in command("--json", "walk", ref).lines]


def test_it_is_fetch_and_run_in_one(elsewhere: Command, car: Path, root: str, tmp_path: Path) -> None:
    other = Command(shutil.copytree(elsewhere.home, tmp_path / "other"))
    answer = at_once(elsewhere, root, car, "--trust", "unsigned")
    other("fetch", root, "--from", car, "--trust", "unsigned")
    expected = other.json("run", PROMPT, "--from", "story", *WORDS)
    for same in ("text", "tokens_total", "tokens_generated", "name", "misses", "finish_reason"):
        assert answer[same] == expected[same], same
    assert (answer["name"], answer["misses"], answer["tokens_reused"]) == ("story", [], 80)
    assert (answer["fetched"]["root"], answer["fetched"]["whole"], answer["fetched"]["usable"]) == (root, True, True)
    assert answer["fetched"]["bytes_fetched"] > 5 * 16 * 768
    assert blocks(elsewhere, "story") == blocks(other, "story")
    for command in (elsewhere, other):  # the fetched root is in the log of the name, and from where is remembered
        assert [row["root"] for row in command.json("log", "story")["roots"]][:-1] == [root]
        assert root in command("log", "story").stdout
        assert command.json("fetch", root)["blocks_fetched"] == 0
        assert command("fsck").exit_code == 0
    again = elsewhere.json("run", PROMPT, "--from", "story", *WORDS)
    assert again["misses"] == []
    control = other.json("run", "Something else?", "--from", root, "--name", "control", *WORDS)
    assert control["root"] != expected["root"]
    assert blocks(other, "control") != blocks(other, "story")


def test_what_it_shows(elsewhere: Command, car: Path, root: str) -> None:
    result = elsewhere("run", PROMPT, "--from", root, "--source", car, "--trust", "unsigned", *WORDS)
    assert "80 reused" in result.stderr
    assert "brings the rest" not in result.stderr


def test_nobody_vouches_and_nothing_moves(elsewhere: Command, car: Path, root: str) -> None:
    before = elsewhere.json("stats")
    error = elsewhere.error(5, "run", PROMPT, "--from", root, "--source", car)
    assert error["kind"] == "untrusted"
    assert "--trust KEY with this command" in error["hint"]
    assert elsewhere.json("stats") == before
    assert at_once(elsewhere, root, car, "--trust", "unsigned")["misses"] == []


def test_a_signer_is_trusted_by_a_receipt(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    key = story.json("key", "new")["public"]
    path = tmp_path / "signed.car"
    receipt = story.json("publish", "story", "--public", "--yes", "--car", path)["receipt"]
    assert elsewhere.error(5, "run", PROMPT, "--from", receipt, "--source", path)["kind"] == "untrusted"
    answer = at_once(elsewhere, receipt, path, "--trust", key)
    assert (answer["fetched"]["receipt"], answer["fetched"]["whole"]) == (receipt, True)
    assert answer["fetched"]["signed_by"][0]["trusted"] is True
    assert elsewhere.json("verify", receipt, "--level", "receipt")
    elsewhere("trust", "remove", answer["fetched"]["signed_by"][0]["key"])
    assert elsewhere.error(5, "run", PROMPT, "--from", "story")["kind"] == "untrusted"


def without(car: Path, path: Path, drop: int) -> Path:
    """Write a file that lacks the leaves of all blocks from the `drop`-th leaf on; damaged where asked for."""
    with car.open("rb") as source, path.open("wb") as out:
        reader = read_car(source)
        sections = [(cid, bytes(data)) for cid, data in reader]
        leaves = [cid for cid, _ in sections if cid.codec == "raw"]
        kept = [(cid, data) for cid, data in sections if cid not in leaves[drop:]]
        write_car(out, [sections[0][0]], kept)
    return path


@pytest.mark.parametrize("came", [0, 3])
def test_what_does_not_come_is_computed_and_fetch_brings_the_rest(
    elsewhere: Command, car: Path, root: str, tmp_path: Path, came: int
) -> None:
    cut = without(car, tmp_path / "cut.car", came)
    other = Command(shutil.copytree(elsewhere.home, tmp_path / "other"))
    whole = at_once(other, root, car, "--trust", "unsigned")
    result = elsewhere(
        "--json", "run", PROMPT, "--from", root, "--source", cut, "--trust", "unsigned", *WORDS
    )  # fmt: skip
    answer = result.json
    assert answer["text"] == whole["text"]
    assert (answer["tokens_reused"], answer["fetched"]["whole"]) == (16 * came, False)
    [miss] = answer["misses"]
    assert miss["position_start"] == 16 * came
    assert "brings the rest" in result.stderr
    assert blocks(elsewhere, answer["name"]) == blocks(other, "story")
    grounds = {ground.root: ground for ground in TrustFolder(elsewhere.home / "trust").grounds()}
    assert (Cid.parse(answer["root"]) in grounds) is (came > 0)  # it stands on what came from elsewhere
    rest = elsewhere.json("fetch", root, "--from", car)
    assert rest["bytes_fetched"] < whole["fetched"]["bytes_fetched"]
    assert elsewhere("fsck").exit_code == 0


def test_a_damaged_file_costs_a_miss(elsewhere: Command, car: Path, root: str, tmp_path: Path) -> None:
    with car.open("rb") as source:
        leaf = next(bytes(data) for cid, data in read_car(source) if cid.codec == "raw")
    data = car.read_bytes()
    at = data.index(leaf)
    bad = tmp_path / "bad.car"
    bad.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    other = Command(shutil.copytree(elsewhere.home, tmp_path / "other"))
    answer = at_once(elsewhere, root, bad, "--trust", "unsigned")
    [miss] = answer["misses"]
    assert "do not hash" in miss["reason"]
    assert answer["text"] == at_once(other, root, car, "--trust", "unsigned")["text"]
    assert elsewhere("fsck").exit_code == 0


def from_home(command: Command, root: str) -> dict[Cid, bytes]:
    with DiskStore(command.home / "store", read_only=True) as store:
        return contents(store, Cid.parse(root))


def test_it_comes_from_a_gateway(elsewhere: Command, story: Command, car: Path, root: str, tmp_path: Path) -> None:
    other = Command(shutil.copytree(elsewhere.home, tmp_path / "other"))
    with lying(from_home(story, root), Exchange.honest) as server:
        answer = elsewhere.json("run", PROMPT, "--from", root, "--source", server.url, "--trust", "unsigned", *WORDS)
        assert answer["text"] == at_once(other, root, car, "--trust", "unsigned")["text"]
        assert (answer["fetched"]["peers"], answer["fetched"]["whole"]) == ([server.url], True)
        assert not any("format=car" in target for target in server.targets)
        assert elsewhere.json("fetch", root)["peers"] == [server.url]  # it is remembered


def test_interrupted_on_the_way_nothing_is_recorded_and_it_can_be_done_again(
    elsewhere: Command, story: Command, car: Path, root: str
) -> None:
    leaves = list[Cid]()

    def behave(exchange: Exchange) -> None:
        if exchange.cid.codec == "raw":
            leaves.append(exchange.cid)
            if len(leaves) > 2:
                os.kill(os.getpid(), signal.SIGINT)
                exchange.hang()
                return
        exchange.honest()

    with lying(from_home(story, root), behave) as server:
        line = ("run", PROMPT, "--from", root, "--source", server.url, "--trust", "unsigned", *WORDS)
        assert elsewhere(*line, ok=False).exit_code == 130
        server.ended.set()
    assert elsewhere.json("list")["conversations"] == []
    assert elsewhere("fsck").exit_code == 0
    answer = at_once(elsewhere, root, car, "--trust", "unsigned")
    assert (answer["misses"], answer["fetched"]["whole"]) == ([], True)


def test_refused(story: Command, elsewhere: Command, car: Path, root: str, tmp_path: Path) -> None:
    where = ("--source", car)
    assert elsewhere("run", PROMPT, *where, ok=False).exit_code == 2
    assert elsewhere("run", PROMPT, "--from", root, *where, "--select", "recent", ok=False).exit_code == 2
    assert elsewhere("run", PROMPT, "--from", root, "--trust", "unsigned", ok=False).exit_code == 2
    assert elsewhere.error(2, "run", PROMPT, "--from", "story", *where)["kind"] == "bad-reference"
    assert elsewhere.error(3, "run", PROMPT, "--from", root, "--source", tmp_path / "none.car")["kind"] == "not-found"
    assert elsewhere.error(7, "run", PROMPT, "--from", root, "--source", "http://127.0.0.1:9")["kind"] != ""
    empty = Command(tmp_path / "empty")
    error = empty.error(3, "run", PROMPT, "--from", root, *where, "--trust", "unsigned")
    assert "none is registered" in error["message"]
    story("key", "new")
    sealed = tmp_path / "sealed.car"
    story("publish", "story", "--link", "--yes", "--car", sealed)
    with sealed.open("rb") as source:
        cid = next(iter(read_car(source)))[0]
    assert elsewhere.error(2, "run", PROMPT, "--from", cid, "--source", sealed)["kind"] == "bad-reference"
    assert STORY not in elsewhere.home.as_posix()
