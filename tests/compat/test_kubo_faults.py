"""Uploads to a real Kubo node, cut, doubled, starved or swept away: nothing is lost, and a repeat sends the rest."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.peers.kubo import KuboPeer, KuboRpc, RpcAddress
from cyberkv.cybergraph.peers.kubo.upload import PART_NAME
from tests.compat.daemon import BINARY, Daemon
from tests.compat.home import PROGRAM, cyberkv, held, make_home, publish
from tests.compat.places import need
from tests.compat.proxy import StallingProxy
from tests.faults import mounts

pytestmark = pytest.mark.compat

BLOCKS = 520
"""Three parts, of 256, 256 and 8 blocks; the last goes with the root."""
SEGMENT_BYTES = 560 << 10
"""Somewhat less than what one of the first two takes in a stream."""
MID_SECOND_BYTES = SEGMENT_BYTES * 3 // 2

Kubo = Callable[..., Daemon]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_home(tmp_path / "here", talk=BLOCKS)
    return tmp_path / "here"


@pytest.fixture
def root(home: Path) -> Cid:
    return Cid.parse(cyberkv(home, "list")["conversations"][0]["root"])


@contextmanager
def publishing(home: Path, address: str) -> Iterator["subprocess.Popen[str]"]:
    """The command at work."""
    words = ["--home", str(home), "publish", "talk", "--public", "--yes", "--kubo", address]
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def answered(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any]]:
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return process.returncode, json.loads(out)


def pins(node: Daemon) -> dict[str, str]:
    with closing(KuboRpc(RpcAddress.parse(node.api))) as rpc:
        lines = list(rpc.lines("pin/ls", options={"type": "recursive", "names": "true", "stream": "true"}))
    return {line["Cid"]: line.get("Name", "") for line in lines if line["Cid"].startswith("baf")}


def check_whole(node: Daemon, home: Path, root: Cid) -> None:
    """After a collection of garbage, the node's own checks and an export find all of it, and one pin on the root."""
    assert pins(node).get(str(root)) == "cyberkv/talk"
    assert PART_NAME not in pins(node).values()
    node.run("repo", "gc")
    node.run("repo", "verify")
    assert "broken" not in node.run("pin", "verify")
    with KuboPeer(node.api) as peer:
        assert dict(peer.get_dag(root)) == held(home, root)


def parts(done: dict[str, Any]) -> tuple[int, int]:
    return done["kubo"]["parts_sent"], done["kubo"]["parts_had"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_ended_midway_goes_on_at_its_part(
    how: signal.Signals, home: Path, root: Cid, kubo: Kubo
) -> None:
    node = kubo("node", online=False)
    with StallingProxy(node.api, MID_SECOND_BYTES) as proxy, publishing(home, proxy.url) as process:
        proxy.wait()
        process.send_signal(how)
        if how == signal.SIGINT:
            code, said = answered(process)
            assert (code, said["error"]["kind"]) == (130, "interrupted")
            assert "goes on from there" in said["error"]["hint"]
        else:
            assert process.wait(120) == -signal.SIGKILL
    assert set(pins(node).values()) == {PART_NAME}
    node.run("repo", "gc")
    assert parts(publish(home, "talk", "--kubo", node.api)) == (2, 1)
    check_whole(node, home, root)
    assert cyberkv(home, "fsck")["ok"]


def test_a_node_that_is_killed_midway_is_unreachable_and_then_given_the_rest(home: Path, root: Cid, kubo: Kubo) -> None:
    node = kubo("node", online=False)
    with StallingProxy(node.api, MID_SECOND_BYTES) as proxy, publishing(home, proxy.url) as process:
        proxy.wait()
        node.kill()
        proxy.release()
        code, said = answered(process)
    assert (code, said["error"]["kind"]) == (7, "peer-unreachable"), said
    assert proxy.url in said["error"]["message"]
    assert said["error"]["hint"]
    node.start()
    assert set(pins(node).values()) == {PART_NAME}
    assert parts(publish(home, "talk", "--kubo", node.api)) == (2, 1)
    check_whole(node, home, root)


def test_two_uploads_of_overlapping_conversations_at_once(home: Path, root: Cid, tmp_path: Path, kubo: Kubo) -> None:
    longer = make_home(tmp_path / "longer", talk=BLOCKS + 100)["talk"]
    node = kubo("node", online=False)
    with publishing(home, node.api) as one, publishing(tmp_path / "longer", node.api) as other:
        for code, said in map(answered, (one, other)):
            assert code == 0, said
    check_whole(node, home, root)
    check_whole(node, tmp_path / "longer", longer)


def test_garbage_is_collected_all_the_while(home: Path, root: Cid, kubo: Kubo) -> None:
    node, done = kubo("node", online=False), threading.Event()
    rounds: list[int] = []

    def sweep() -> None:
        with closing(KuboRpc(RpcAddress.parse(node.api))) as rpc:
            while not done.is_set():
                rounds.append(sum(1 for _ in rpc.lines("repo/gc")))

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        publish(home, "talk", "--kubo", node.api)
    finally:
        done.set()
        sweeper.join(120)
    assert rounds
    check_whole(node, home, root)


def test_growth_after_the_old_root_was_unpinned_and_swept_away(
    home: Path, root: Cid, tmp_path: Path, kubo: Kubo
) -> None:
    node = kubo("node", online=False)
    publish(home, "talk", "--kubo", node.api)
    node.run("pin", "rm", str(root))
    node.run("repo", "gc")
    longer = make_home(tmp_path / "longer", talk=BLOCKS + 100)["talk"]
    assert parts(publish(tmp_path / "longer", "talk", "--kubo", node.api)) == (3, 0)
    check_whole(node, tmp_path / "longer", longer)


def test_a_node_whose_disk_is_full_says_so_and_takes_the_rest_once_there_is_room(home: Path, root: Cid) -> None:
    need(f"Kubo at {BINARY}", BINARY.exists())
    with mounts.in_memory(5 << 20) as disk:
        node = Daemon(disk / "repo")
        try:
            done = subprocess.run(
                [*PROGRAM, "--home", str(home), "publish", "talk", "--public", "--yes", "--kubo", node.api],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            said = json.loads(done.stdout)["error"]
            assert (done.returncode, said["kind"]) == (8, "full"), said
            assert "room" in said["hint"]
            assert node.api.split("/")[-1] in said["message"]
            node.stop()
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            node.start()
            before = pins(node)
            assert set(before.values()) <= {PART_NAME}
            assert parts(publish(home, "talk", "--kubo", node.api)) == (3 - len(before), len(before))
            check_whole(node, home, root)
        finally:
            node.stop()


def test_a_fork_takes_its_public_parent_along(home: Path, root: Cid, kubo: Kubo) -> None:
    node = kubo("node", online=False)
    publish(home, "talk")
    fork = Cid.parse(cyberkv(home, "fork", "talk", "--at", "1040", "--name", "fork")["root"])
    publish(home, "fork", "--kubo", node.api)
    assert pins(node) == {str(fork): "cyberkv/fork"}
    node.run("repo", "gc")
    assert node.run("block", "stat", "--offline", str(root))
    with KuboPeer(node.api) as peer:
        assert dict(peer.get_many(list(held(home, fork)))) == held(home, fork)


def test_what_a_node_holds_comes_from_its_gateway_as_well(home: Path, root: Cid, tmp_path: Path, kubo: Kubo) -> None:
    node = kubo("node", online=False)
    publish(home, "talk", "--kubo", node.api)
    got = cyberkv(tmp_path / "there", "fetch", root, "--from", node.gateway)
    assert (got["blocks_fetched"], got["refused"]) == (got["blocks_total"], [])
    assert held(tmp_path / "there", root) == held(home, root)
    node.run("pin", "rm", str(root))
    node.run("repo", "gc")
    missing = cyberkv(tmp_path / "nowhere", "fetch", root, "--from", node.gateway, code=3)
    assert missing["error"]["kind"] == "block-not-found"
