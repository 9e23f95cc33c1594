"""`gc`, `pin`, `forget`, and the cap: what goes, what stays, and what is said."""

import json
import shutil
from pathlib import Path
from subprocess import PIPE

import pytest

from cyberkv.cli import gc
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command
from tests.forked import Forked

OTHER = "A tide of violet letters rolled over the sleeping harbour and nobody woke. " * 2
SLOT_BYTES = 12288  # 16 tokens of the small model


def used_bytes(cyberkv: Command) -> int:
    used: int = cyberkv.json("stats")["used_bytes"]
    return used


def test_nothing_of_a_named_conversation_goes(story: Command) -> None:
    before = story.json("stats")
    swept = story.json("gc")
    assert (swept["nodes"], swept["leaves"], swept["bytes"], swept["conversations"]) == (0, 0, 0, [])
    assert (swept["kept_blocks"], swept["undeletable"]) == (before["nodes"] + before["leaves"], [])
    assert "deleted  0 objects" in story("gc").stdout
    assert story.json("prefill", "-", "--name", "again", stdin=STORY)["tokens_reused"] == 80


def test_a_forgotten_conversation_goes(story: Command) -> None:
    story("prefill", "-", "--name", "keep", stdin=OTHER)
    kept = story.json("stats")["blocks"] - 5
    root = story.json("forget", "story")["forgotten"]
    assert [each["name"] for each in root] == ["story"]
    assert story.error(3, "show", "story")["kind"] == "name-not-found"
    planned = story.json("gc", "--dry-run")
    assert (planned["dry_run"], planned["leaves"], planned["freed_bytes"]) == (True, 6, 0)
    assert [(each["root"], each["title"], each["tokens"]) for each in planned["conversations"]] == [
        (root[0]["root"], "story", 85)
    ]
    assert story.json("stats")["leaves"] > 6 + kept  # a dry run changes nothing
    page = story("gc", "--dry-run").stdout
    assert root[0]["root"] in page
    assert "would delete" in page
    swept = story.json("gc")
    assert {key: swept[key] for key in ("nodes", "leaves", "bytes")} == {
        key: planned[key] for key in ("nodes", "leaves", "bytes")
    }
    assert story.json("stats")["blocks"] == kept
    assert story.json("fsck")["ok"]
    assert story.json("prefill", "-", "--name", "again", stdin=STORY)["tokens_reused"] == 0
    assert story.json("prefill", "-", "--name", "more", stdin=OTHER)["tokens_computed"] < 16


def test_what_files_give_back_beyond_what_was_deleted_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    data = {
        "conversations": [], "nodes": 1, "leaves": 1, "evicted_leaves": 0, "cap_bytes": None, "dry_run": False,
        "bytes": 2048, "freed_bytes": 2048, "kept_blocks": 0, "kept_bytes": 0, "used_bytes": 0, "undeletable": [],
    }  # fmt: skip
    for freed_bytes, explained in ((2048, False), (4096, True)):
        gc._show(data | {"freed_bytes": freed_bytes})
        assert ("freed is more than was deleted" in capsys.readouterr().out) is explained


def test_forget_is_all_or_nothing(story: Command) -> None:
    assert story.error(3, "forget", "story", "nosuch")["kind"] == "name-not-found"
    assert [each["name"] for each in story.json("list")["conversations"]] == ["story"]
    assert story.error(2, "forget")["kind"] == "usage"
    assert "gc" in story("forget", "story").stderr


def test_a_pin_keeps_what_was_forgotten(story: Command) -> None:
    root = story.json("list")["conversations"][0]["root"]
    pinned = story.json("pin", "add", "story")
    assert (pinned["cid"], pinned["new"], pinned["blocks"]) == (root, True, 8 + 6)
    assert not story.json("pin", "add", root[:20])["new"]
    [listed] = story.json("pin", "list")["pins"]
    assert (listed["cid"], listed["names"]) == (root, ["story"])
    assert listed["created"].endswith("Z")
    story("forget", "story")
    assert story.json("gc")["leaves"] == 0
    assert story.json("stats")["pins"] == 1
    [listed] = story.json("pin", "list")["pins"]
    assert (listed["cid"], listed["names"], listed["title"]) == (root, [], "story")
    assert story("pin", "list").stdout.split()[-2:] == ["was", "story"]
    assert "pin list" in story.error(3, "pin", "remove", "story")["hint"]
    story("pin", "remove", root)
    assert story.error(3, "pin", "remove", root)["cid"] == root
    assert story.json("pin", "list")["pins"] == []
    assert story.json("gc")["leaves"] == 6


def test_what_cannot_be_pinned(story: Command) -> None:
    [block] = [each for each in story("walk", "story", "--json").lines if each["index"] == 1]
    leaf = story.json("show", block["cid"])["node"]["kv"][0]
    leaf = leaf["/"] if isinstance(leaf, dict) else leaf
    assert "leaf" in story.error(2, "pin", "add", leaf)["message"]
    with DiskStore(story.home / "store") as store:
        store.delete_many([Cid.parse(leaf)])
    assert leaf in story.error(3, "pin", "add", "story")["missing"]
    assert story.json("pin", "add", story("walk", "story", "--json").lines[0]["cid"])["new"]  # the control


def test_a_cap_is_kept_by_every_later_command(story: Command) -> None:
    cap_bytes = used_bytes(story)
    assert story.json("gc", "--cap", str(cap_bytes))["cap_bytes"] == cap_bytes
    done = story("--json", "prefill", "-", stdin=OTHER, ok=False)
    error = done.json["error"]
    assert (done.exit_code, error["kind"], error["cap_bytes"]) == (8, "full", cap_bytes)
    assert "gc --cap" in error["hint"]
    assert used_bytes(story) <= cap_bytes
    assert story.json("fsck")["ok"]
    assert story.json("stats")["cap_bytes"] == cap_bytes
    assert [each["name"] for each in story.json("list")["conversations"]] == ["story"]
    story("forget", "story")
    recorded = story.json("prefill", "-", "--name", "other", stdin=OTHER[:54])  # makes room by itself
    assert recorded["blocks_new"] == 3
    assert used_bytes(story) <= cap_bytes
    assert story.json("fsck")["ok"]
    assert story.json("gc", "--cap", "none")["cap_bytes"] is None
    story("prefill", "-", "--name", "long", stdin=OTHER)  # the control
    assert used_bytes(story) > cap_bytes


def test_a_cap_too_small_for_what_stays_is_refused(story: Command) -> None:
    before = used_bytes(story)
    error = story.error(8, "gc", "--cap", "10KiB")
    assert (error["kind"], error["cap_bytes"], error["used_bytes"]) == ("full", 10240, before)
    assert story.json("stats")["cap_bytes"] is None
    assert used_bytes(story) == before
    story("forget", "story")
    assert story.json("gc", "--cap", "1.5 MiB")["cap_bytes"] == 3 << 19
    assert "of at most 1.5 MiB" in story("stats").stdout


@pytest.mark.parametrize(
    "text", ["", "-1", "10GB", "ten", "1e9", "5 XiB", "NONE", "9" * 400, str(1 << 63), "8388608TiB"]
)
def test_a_cap_that_is_no_size_is_a_usage_error(story: Command, text: str) -> None:
    assert story.error(2, "gc", "--cap", text)["kind"] == "usage"


def test_caps_are_exact(story: Command) -> None:
    for text, cap_bytes in {str((1 << 53) + 1): (1 << 53) + 1, "0.1GiB": (1 << 30) // 10}.items():
        assert story.json("gc", "--cap", text)["cap_bytes"] == story.json("stats")["cap_bytes"] == cap_bytes


def test_a_dry_run_with_a_cap_says_what_would_go(story: Command, first_home: Path, tmp_path: Path) -> None:
    cyberkv = Command(shutil.copytree(first_home, tmp_path / "other"))
    story("publish", "story", "--public", "--car", tmp_path / "story.car", "--yes")
    root = story.json("list")["conversations"][0]["root"]
    cyberkv("fetch", root, "--from", tmp_path / "story.car")
    cyberkv("prefill", "-", "--name", "keep", stdin=OTHER)
    before = cyberkv.json("stats")
    cap_bytes = before["used_bytes"] - 2 * SLOT_BYTES - 1
    planned = cyberkv.json("gc", "--dry-run", "--cap", cap_bytes)
    assert (planned["dry_run"], planned["cap_bytes"], planned["freed_bytes"]) == (True, cap_bytes, 0)
    assert 3 <= planned["evicted_leaves"] <= 6
    assert "would evict" in cyberkv("gc", "--dry-run", "--cap", cap_bytes).stdout
    assert cyberkv.json("stats") == before
    assert cyberkv.json("gc", "--dry-run")["evicted_leaves"] == 0  # a cap in words alone
    too_small = cyberkv.error(8, "gc", "--dry-run", "--cap", "10KiB")
    assert (too_small["kind"], too_small["cap_bytes"]) == ("full", 10240)
    assert cyberkv.json("gc", "--dry-run", "--cap", "1GiB")["evicted_leaves"] == 0
    swept = cyberkv.json("gc", "--cap", cap_bytes)
    assert swept["evicted_leaves"] == planned["evicted_leaves"]
    (tmp_path / "story.car").unlink()
    assert cyberkv.error(8, "gc", "--dry-run", "--cap", "40KiB")["kind"] == "full"  # its source has it no more


def test_garbage_goes_before_a_cap_takes_anything(story: Command) -> None:
    story("forget", "story")
    story("prefill", "-", "--name", "keep", stdin=OTHER)
    planned = story.json("gc", "--dry-run", "--cap", story.json("stats")["used_bytes"] - SLOT_BYTES)
    assert (planned["leaves"], planned["evicted_leaves"]) == (6, 0)


def test_a_cap_that_cannot_be_read_is_said_before_anything_goes(story: Command) -> None:
    story("forget", "story")
    (story.home / "store" / "CAP").write_text("many")
    for line in (["gc"], ["gc", "--dry-run"]):
        assert "--cap" in story.error(5, *line)["hint"]
    assert story.json("gc", "--cap", "none")["leaves"] == 6  # the control: all were still here


def test_gc_of_a_damaged_conversation_refuses(story: Command) -> None:
    root = story.json("list")["conversations"][0]["root"]
    segment = story.json("show", root)["node"]["segments"][0]
    with DiskStore(story.home / "store") as store:
        store.delete_many([Cid.parse(segment["/"] if isinstance(segment, dict) else segment)])
    assert "nothing was collected" in story.error(3, "gc")["message"]
    assert "nothing was collected" in story.error(3, "gc", "--dry-run")["message"]


def test_gc_beside_a_recording_refuses_and_changes_nothing(story: Command) -> None:
    story("forget", "story")
    before = story.json("stats")["leaves"]
    with Forked(["--home", story.home, "--json", "chat"], stdin=PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("/root\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["root"] == ""
        refused = story.error(5, "gc")
        assert f"process {process.pid} (cyberkv chat) may be recording" in refused["message"]
        assert (refused["processes"], "wait until it is done" in refused["hint"]) == ([process.pid], True)
        assert story.json("gc", "--dry-run")["leaves"] == before
        process.stdin.write("/quit\n")
        process.stdin.close()
        assert process.wait() == 0
    assert story.json("gc")["leaves"] == before


def test_fsck_keeps_damaged_blocks_aside(story: Command) -> None:
    block = story("walk", "story", "--json").lines[2]["cid"]
    leaf = story.json("show", block)["node"]["kv"][0]
    leaf = leaf["/"] if isinstance(leaf, dict) else leaf
    story.damage(leaf)
    repaired = json.loads(story("--json", "fsck", "--repair", ok=False).stdout)
    assert repaired["dropped"] == [leaf]
    assert story.json("stats")["quarantined"] == [leaf]
    assert (story.home / "store" / "quarantine" / leaf).stat().st_size == SLOT_BYTES
    assert story.json("prefill", "-", "--name", "again", stdin=STORY)["tokens_reused"] < 80  # computed again
    assert story.json("fsck")["ok"]
    story("gc")
    assert story.json("stats")["quarantined"] == []


def test_repair_from_a_file(story: Command, tmp_path: Path) -> None:
    car = tmp_path / "story.car"
    story("publish", "story", "--public", "--car", car, "--yes")
    block = story("walk", "story", "--json").lines[2]["cid"]
    leaf = story.json("show", block)["node"]["kv"][0]
    story.damage(leaf["/"] if isinstance(leaf, dict) else leaf)
    repaired = story.json("fsck", "--from", car)
    assert repaired["ok"]
    assert [each["blocks"] for each in repaired["refetched"]] == [1]
    assert story.json("verify", "story")["failed"] == []


def raw_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_the_files_of_a_home_hold_nothing_of_what_was_deleted(story: Command) -> None:
    """Searched is every byte of every file, whatever a database calls free."""
    story("prefill", "-", "--name", "other", stdin=OTHER)
    root = Cid.parse(story.json("show", "other")["cid"])
    with DiskStore(story.home / "store", read_only=True) as store:
        everything = set(store.cids())
    story("forget", "story")
    story("gc")
    with DiskStore(story.home / "store", read_only=True) as store:
        gone = {cid: store.get(cid) for cid in store.cids() if cid in everything}
    model = story.json("model", "list")["models"][0]["cid"]
    del gone[Cid.parse(model)]
    assert root in gone
    leaves = [data for cid, data in gone.items() if cid.codec == "raw"]
    nodes = [data for cid, data in gone.items() if cid.codec != "raw"]
    assert len(leaves) >= 9
    assert len(nodes) >= 11
    before = raw_files(story.home)
    assert all(data in before for data in (*leaves, *nodes))  # the control
    assert root.digest in raw_files(story.home / "index")
    story("forget", "other")
    assert root.digest not in raw_files(story.home / "index")
    assert all(data in raw_files(story.home) for data in (*leaves, *nodes))
    story("gc")
    after = raw_files(story.home)
    for data in (*leaves, *nodes):
        assert data not in after
        assert data[len(data) // 3 : len(data) // 3 + 64] not in after
    assert all(cid.digest not in after for cid in gone)
    assert story("fsck").exit_code == 0
    assert not (story.home / "traces").exists()


def test_a_gc_that_was_killed_leaves_its_traces_to_the_next(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskStore(story.home / "store", read_only=True) as store:
        block = next(store.get(cid) for cid in store.cids() if b"cyberkv/block" in store.get(cid))
    story("forget", "story")
    with monkeypatch.context() as patched:
        full = TierFull("no room left")
        patched.setattr(DiskStore, "overwrite_free", lambda _: (_ for _ in ()).throw(full))
        assert "keep traces" in story("gc").stderr
    assert block in raw_files(story.home / "store")
    assert story.json("gc")["nodes"] == 0
    assert block not in raw_files(story.home / "store")


def test_a_gc_that_deletes_nothing_writes_nothing(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskStore, "overwrite_free", None)
    assert story.json("gc")["nodes"] == 0
    assert story.json("gc", "--dry-run")["nodes"] == 0
