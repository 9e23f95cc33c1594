"""`publish --kubo` and `fetch --from kubo:` as a person uses them, with a real node between two homes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from tests.compat.daemon import BINARY, Daemon
from tests.compat.places import need
from tests.wire.synthetic import record

pytestmark = pytest.mark.compat

PATHS = [f"/api/v0/{name}" for name in ("block", "config", "dag", "pin", "provide")]
RULES = {"us": {"AuthSecret": "bearer:swordfish", "AllowedPaths": PATHS}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    need("Kubo", BINARY.exists())
    running = Daemon(tmp_path_factory.mktemp("kubo") / "repo", API__Authorizations=RULES)
    yield running
    running.stop()


def cyberkv(home: Path, *words: str, **environment: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "cyberkv.cli", "--home", str(home), "--json", *words],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "swordfish" not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_conversation_goes_from_home_to_home_by_way_of_a_node(node: Daemon, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(mode=0o700)
    with DiskStore(here / "store") as store, Index(here / "index") as index:
        root = record(store, blocks=300)
        index.set_head("talk", root, "2025-01-01T00:00:00Z")
    secret = tmp_path / "secret"
    secret.write_text("bearer:swordfish\n")

    words = ("publish", "talk", "--public", "--yes", "--kubo", node.api)
    code, refused = cyberkv(here, *words)
    assert (code, refused["error"]["kind"]) == (6, "access-denied")
    code, done = cyberkv(here, *words, CYBERKV_KUBO_AUTH_FILE=str(secret))
    assert code == 0, done
    assert done["urls"] == [f"ipfs://{root}"]
    assert done["kubo"]["pinned_as"] == "cyberkv/talk"
    assert (done["kubo"]["parts_sent"], done["kubo"]["parts_had"]) == (2, 0)
    code, again = cyberkv(here, *words, CYBERKV_KUBO_AUTH="bearer:swordfish")
    assert (code, again["kubo"]["parts_sent"], again["kubo"]["parts_had"]) == (0, 0, 2)

    code, pins = cyberkv(here, "pin", "list", "--kubo", node.api, CYBERKV_KUBO_AUTH="bearer:swordfish")
    assert (code, pins["pins"]) == (0, [])
    assert {"cid": str(root), "name": "cyberkv/talk"} in pins["kubo"]["pins"]
    assert cyberkv(here, "pin", "list", "--kubo", node.api)[0] == 6

    fetch = ("fetch", str(root), "--from", f"kubo:{node.api}")
    code, refused = cyberkv(there, *fetch, CYBERKV_KUBO_AUTH="bearer:herring")
    assert (code, refused["error"]["kind"]) == (6, "access-denied")
    code, got = cyberkv(there, *fetch, CYBERKV_KUBO_AUTH="bearer:swordfish")
    assert code == 0, got
    assert (got["blocks_fetched"], got["blocks_had"]) == (got["blocks_total"], 0)
    code, checked = cyberkv(there, "verify", str(root))
    assert (code, checked["failed"]) == (0, [])
    code, whole = cyberkv(there, "fsck")
    assert code == 0, whole


def test_a_signed_conversation_is_pinned_by_its_receipt(node: Daemon, tmp_path: Path) -> None:
    root, there, opens = record_somewhere(tmp_path), tmp_path / "there", {"CYBERKV_KUBO_AUTH": "bearer:swordfish"}
    words = ("publish", str(root), "--public", "--sign", "--yes", "--kubo", node.api)
    code, done = cyberkv(tmp_path / "here", *words, **opens)
    assert (code, done["urls"]) == (0, [f"ipfs://{done['receipt']}"]), done
    assert cyberkv(tmp_path / "here", *words, **opens)[1]["receipt"] == done["receipt"]
    source = ("--from", node.gateway, "--trust", done["signed_by"])
    code, got = cyberkv(there, "fetch", done["receipt"], *source)
    assert (code, got["root"], got["usable"]) == (0, str(root), True), got
    code, checked = cyberkv(there, "verify", str(root), "--level", "receipt")
    assert (code, checked["receipts"][0]["producer"]) == (0, done["signed_by"])


def test_a_repair_brings_what_is_lost_from_the_node_it_came_from(node: Daemon, tmp_path: Path) -> None:
    root, there, opens = record_somewhere(tmp_path), tmp_path / "there", {"CYBERKV_KUBO_AUTH": "bearer:swordfish"}
    source = f"kubo:{node.api}"
    assert cyberkv(tmp_path / "here", "publish", str(root), "--public", "--yes", "--kubo", node.api, **opens)[0] == 0
    assert cyberkv(there, "fetch", str(root), "--from", source, **opens)[0] == 0
    with DiskStore(there / "store") as store:
        block = next(block_cids(store, load_root(store, root)))
        store.delete_many([block])
    code, shut = cyberkv(there, "fsck", "--repair")
    assert (code, shut["refetched"]) == (4, []), shut
    assert "does not let us" in shut["failed"][0]["reason"]
    code, mended = cyberkv(there, "fsck", "--repair", **opens)
    assert (code, mended["refetched"]) == (0, [{"root": str(root), "blocks": 1}])


def test_what_the_node_does_not_hold_is_not_found(node: Daemon, tmp_path: Path) -> None:
    from cyberkv.cybergraph.store import MemoryStore

    absent = record(MemoryStore(), seed="nowhere")
    words = ("fetch", str(absent), "--from", f"kubo:{node.api}")
    code, failed = cyberkv(tmp_path / "home", *words, CYBERKV_KUBO_AUTH="bearer:swordfish")
    assert (code, failed["error"]["kind"]) == (3, "block-not-found")


def test_doctor_looks_at_the_node(node: Daemon, tmp_path: Path) -> None:
    code, found = cyberkv(tmp_path / "home", "doctor", "--kubo", node.api, CYBERKV_KUBO_AUTH="bearer:swordfish")
    assert (code, found["kubo"]["version"], found["kubo"]["strategy"]) == (0, "0.43.1", "all")
    assert "Provide.Strategy roots" in found["kubo"]["advice"]
    code, found = cyberkv(tmp_path / "home", "doctor", "--kubo", "http://127.0.0.1:9")
    assert (code, found["kubo"], found["problems"][0]["kind"]) == (7, None, "peer-unreachable")


def test_a_node_that_is_not_there_and_an_address_that_is_none(node: Daemon, tmp_path: Path) -> None:
    root = str(record_somewhere(tmp_path))
    code, failed = cyberkv(tmp_path / "here", "publish", root, "--public", "--yes", "--kubo", "http://127.0.0.1:9")
    assert (code, failed["error"]["kind"]) == (7, "peer-unreachable")
    code, failed = cyberkv(tmp_path / "here", "publish", root, "--public", "--yes", "--kubo", node.gateway)
    assert (code, failed["error"]["kind"]) == (7, "rpc-failed")
    assert "not its gateway" in failed["error"]["hint"]
    code, failed = cyberkv(tmp_path / "here", "publish", root, "--public", "--yes", "--kubo", "ftp://x")
    assert (code, failed["error"]["kind"]) == (2, "bad-reference")


def record_somewhere(folder: Path) -> Any:
    (folder / "here").mkdir(mode=0o700)
    with DiskStore(folder / "here" / "store") as store, Index(folder / "here" / "index"):
        return record(store)
