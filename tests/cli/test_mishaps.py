"""Names that move, copies cut off before, indexes that are lost: what is private, or whose word counts, stays so."""

import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cli import grant, renewing
from cyberkv.cli.identities import FILE_VARIABLE
from cyberkv.cybergraph.access.folder import AccessFolder
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command, public_key

OTHER = "Another text, which only the second reader is to see, and nobody who could read the first."


def forget_and_begin(story: Command) -> None:
    story("forget", "story")
    story("prefill", "-", "--name", "story", stdin=OTHER)


def begin_over_it(story: Command) -> None:
    story("prefill", "-", "--name", "story", stdin=OTHER)


def fork_over_it(story: Command) -> None:
    story("prefill", "-", "--name", "other", stdin=OTHER)
    story("fork", "other", "--at", len(OTHER), "--name", "story")


@pytest.mark.parametrize("move", [forget_and_begin, begin_over_it, fork_over_it])
def test_another_conversation_of_the_same_name_has_not_its_readers(
    story: Command, first: Command, second: Command, car: Path, move: Callable[[Command], None]
) -> None:
    old, label = story.json("show", "story")["cid"], "first"
    story.json("publish", "story", "--to", public_key(first))
    story.json("grant", "add", "story", first.json("key", "show")["public"], "--label", label)
    move(story)
    assert story.error(2, "publish", "story", "--to", "readers")["message"] == "story has no readers yet"
    sealed = story.json("publish", "story", "--to", public_key(second), "--car", car)
    assert len(sealed["readers"]) == 1
    assert first.error(6, "fetch", sealed["root"], "--from", car)["kind"] == "not-a-recipient"
    assert second.json("fetch", sealed["root"], "--from", car)["blocks_fetched"]
    listed = {
        each["name"]: [reader["label"] for reader in each["readers"]] for each in story.json("grant", "list")["grants"]
    }
    assert listed[old] == [label]
    assert story.json("grant", "revoke", old, label)["epoch"] == 2  # what was published before is looked after still


def test_a_conversation_that_grows_keeps_its_readers(story: Command, first: Command, car: Path) -> None:
    story.json("publish", "story", "--to", public_key(first))
    story("run", " And", "--from", "story", "--max-tokens", "1")
    sealed = story.json("publish", "story", "--to", "readers", "--car", car)
    assert first.json("fetch", sealed["root"], "--from", car)["root"] == story.json("show", "story")["cid"]


def test_a_dry_run_names_who_could_read_before(story: Command, first: Command, second: Command) -> None:
    story.json("publish", "story", "--to", public_key(first))
    key = public_key(second)
    plan = story.json("publish", "story", "--to", key, "--dry-run")
    assert plan["readers"] == [first.json("key", "list")["keys"][0]["fingerprint"], key]


def test_of_two_who_give_access_at_once_one_waits(
    story: Command, first: Command, second: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last to write would bring back a reader whom the other has just revoked."""
    story.json("publish", "story", "--to", public_key(first))
    waits: list[bool] = []
    real = grant.issuer_of

    def meanwhile(*args: object) -> object:
        fd = os.open(story.home / "access" / "giving" / "lock", os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waits.append(False)
        except BlockingIOError:
            waits.append(True)
        finally:
            os.close(fd)
        return real(*args)  # type: ignore[arg-type]

    for module in (grant, renewing):
        monkeypatch.setattr(module, "issuer_of", meanwhile)
    story.json("grant", "add", "story", public_key(second), "--label", "second")
    story.json("grant", "revoke", "story", "second", "--reencrypt")
    assert waits == [True, True]


def test_what_was_published_for_some_is_not_locked_beside_its_key(
    story: Command, first: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words").write_text("open sesame\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "words"))
    story.json("key", "new", "me", "--passphrase")
    story.json("publish", "story", "--to", public_key(first))
    assert "for some" in story.error(5, "lock", "story")["message"]
    story.json("lock", "story", "--weak")
    assert story("fsck").exit_code == 0


def test_a_fork_that_was_locked_is_the_same_afterwards(story: Command) -> None:
    story("fork", "story", "--at", "40", "--name", "fork")
    before = story.json("show", "fork")
    story.json("lock", "fork", "--weak")
    assert story.json("unlock", "fork")["root"] == before["cid"]
    assert story.json("show", "fork") == before


def test_where_the_plaintext_stays_it_is_said(story: Command) -> None:
    story("pin", "add", "story")
    root = story.json("show", "story")["cid"]
    assert root in story("lock", "story", "--weak").stderr
    story("pin", "remove", root)
    story("gc")
    with DiskStore(story.home / "store", read_only=True) as store:
        assert not store.has(Cid.parse(root))


def test_a_lock_beside_somebody_who_records_changes_nothing(story: Command) -> None:
    root = story.json("show", "story")["cid"]
    with DiskStore(story.home / "store"):  # somebody who records
        error = story.error(5, "lock", "story", "--weak")
    assert "could not be deleted" in error["message"]
    assert story.json("show", "story")["cid"] == root
    story("lock", "story", "--weak")
    with DiskStore(story.home / "store", read_only=True) as store:
        assert not store.has(Cid.parse(root))
    assert story.json("unlock", "story")["root"] == root


def test_what_is_locked_survives_the_loss_of_the_index(story: Command) -> None:
    root = story.json("show", "story")["cid"]
    story.json("lock", "story", "--weak")
    shutil.rmtree(story.home / "index")
    [name] = story.json("index", "rebuild")["names"]
    assert story.json("gc")["nodes"] == 0
    assert story.json("unlock", name)["root"] == root


@pytest.mark.parametrize("accepted", [False, True])
def test_a_fork_stands_on_the_same_word_after_the_original_is_gone(
    story: Command, elsewhere: Command, car: Path, *, accepted: bool
) -> None:
    root = story.json("publish", "story", "--public", "--no-sign", "--yes", "--car", car)["root"]
    elsewhere("fetch", root, "--from", car, "--name", "got", *(["--trust", "unsigned"] if accepted else []))
    elsewhere("fork", "got", "--at", "64", "--name", "fork")
    line = ("run", "x", "--from", "fork", "--max-tokens", "1", "--name", "on")
    for command in (("stats",), ("forget", "got"), ("gc",)):
        elsewhere(*command)
        result = elsewhere("--json", *line, ok=False)
        assert result.exit_code == (0 if accepted else 5), result


def test_a_word_for_the_original_is_good_for_its_fork(story: Command, elsewhere: Command, car: Path) -> None:
    root = story.json("publish", "story", "--public", "--no-sign", "--yes", "--car", car)["root"]
    elsewhere("fetch", root, "--from", car, "--name", "got")
    elsewhere("fork", "got", "--at", "64", "--name", "fork")
    line = ("run", "x", "--from", "fork", "--max-tokens", "1", "--name", "on")
    error = elsewhere.error(5, *line)
    assert error["kind"] == "untrusted"
    assert root in error["hint"]  # the fork is nowhere to be fetched
    elsewhere("fetch", root, "--from", car, "--trust", "unsigned")
    assert elsewhere(*line).exit_code == 0


def test_a_mark_holds_for_what_was_cut_off_inside_it_before(story: Command) -> None:
    earlier = story.json("show", "story")["cid"]
    story("fork", "story", "--at", "50", "--name", "early")
    story("fork", "story", "--at", "20", "--name", "before")
    story("run", " And", "--from", "story", "--max-tokens", "1")
    story("mark", "story", "--public", "0:", "--private", "40:88")
    texts = {ref: story.json("publish", ref, "--public", "--dry-run")["text"] for ref in ("early", "before", earlier)}
    assert texts == {"early": STORY[:40], "before": STORY[:20], earlier: STORY[:40]}


def test_no_epoch_begins_for_what_is_locked(story: Command, first: Command) -> None:
    story.json("publish", "story", "--to", public_key(first))
    story.json("lock", "story", "--weak")
    assert "sealed" in story.error(2, "grant", "rotate", "story", "--reencrypt")["message"]
    assert story.json("grant", "list", "story")["grants"][0]["epoch"] == 1
    story.json("unlock", "story")
    assert story.json("grant", "rotate", "story", "--reencrypt")["epoch"] == 2


def test_a_hint_can_be_pasted_whatever_the_name(story: Command, first: Command) -> None:
    name = "; rm -rf ~"
    story("fork", "story", "--at", "40", "--name", name)
    assert f"publish '{name}' --to" in story.error(3, "grant", "rotate", name)["hint"]
    story.json("publish", name, "--to", public_key(first))
    assert f"publish '{name}' --to" in story("grant", "rotate", name).stderr


@pytest.mark.parametrize(("started", "epoch"), [("2099-01-01T00:00:00Z", 2), (None, 1)])
def test_a_key_that_began_under_a_wrong_clock_is_due(
    story: Command, first: Command, started: str | None, epoch: int
) -> None:
    story.json("publish", "story", "--to", public_key(first))
    folder = AccessFolder(story.home / "access")
    [lineage] = folder.lineages()
    folder.keep(replace(lineage, started=started or lineage.started))
    assert story.json("grant", "rotate", "story", "--older-than", "30")["epoch"] == epoch


def test_no_file_of_the_home_has_a_trace_of_what_is_locked(story: Command) -> None:
    """The database keeps deleted rows in its file, and tokens are the text."""
    with DiskStore(story.home / "store", read_only=True) as store:
        before = {cid: store.get(cid) for cid in store.cids()}
    story("prefill", "-", "--name", "other", stdin=OTHER)
    assert traces(story, before)  # control
    story.json("lock", "story", "--weak")
    with DiskStore(story.home / "store", read_only=True) as store:
        gone = {cid: data for cid, data in before.items() if not store.has(cid)}
    assert len(gone) > 12
    assert not traces(story, gone)
    assert story("fsck").exit_code == 0
    assert story.json("unlock", "story")["root"] in map(str, gone)
    assert {each["name"] for each in story.json("list")["conversations"]} == {"story", "other"}


def traces(command: Command, blocks: dict[Cid, bytes]) -> list[Path]:
    files = [path for path in command.home.rglob("*") if path.is_file() and "models" not in path.parts]
    return [
        path
        for path in files
        for cid, data in blocks.items()
        if (content := path.read_bytes()) and (cid.digest in content or data in content)
    ]
