"""`serve` and `fetch` as processes: a URL once it is ready, nothing but what was published, clean ends."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest

from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command
from tests.cli.terminal import on_terminal
from tests.forked import Forked
from tests.wire.liar import Exchange, lying

PROGRAM = [sys.executable, "-m", "cyberkv.cli"]


def start(home: Path, *line: object, stdin: int = subprocess.DEVNULL, module: str = "cyberkv.cli") -> Forked:
    return Forked(["--json", "--home", home, *line], stdin=stdin, module=module)


def finish(home: Path, *line: object, code: int = 0) -> dict[str, Any]:
    process = start(home, *line)
    stdout, stderr = process.communicate()
    assert process.returncode == code, (stdout, stderr)
    answer: dict[str, Any] = json.loads(stdout)
    return answer


@contextmanager
def serving(home: Path) -> Iterator[str]:
    process = start(home, "serve", "--listen", "127.0.0.1:0")
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
        assert process.returncode == 130
        assert stdout == ""
        assert "Traceback" not in stderr
        assert stderr.endswith("stopped\n")


def status(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url) as answer:
            code: int = answer.status
            return code
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture
def elsewhere(first_home: Path, tmp_path: Path) -> Command:
    return Command(shutil.copytree(first_home, tmp_path / "elsewhere"))


def test_record_publish_serve_fetch_and_go_on(story: Command, elsewhere: Command) -> None:
    root = finish(story.home, "show", "story")["cid"]
    with serving(story.home) as url:
        raw = f"{url}/ipfs/{root}?format=raw"
        assert status(raw) == 404
        assert finish(elsewhere.home, "fetch", root, "--from", url, code=3)["error"]
        published = finish(story.home, "publish", root, "--public", "--yes")
        assert published["urls"] == [f"{url}/ipfs/{root}"]
        assert status(raw) == 200
        fetched = finish(elsewhere.home, "fetch", root, "--from", f"{url}/ipfs/{root}", "--trust", "unsigned")
        assert fetched["peers"] == [url]
        again = finish(elsewhere.home, "fetch", f"{url}/ipfs/{root}")
        assert (again["root"], again["peers"], again["blocks_fetched"]) == (root, [url], 0)
    assert fetched["blocks_total"] == published["blocks"]
    assert finish(story.home, "publish", root, "--public", "--yes")["urls"] == []  # nobody serves it any more
    goes_on = finish(elsewhere.home, "run", "And then?", "--from", "story", "--max-tokens", 3)
    assert goes_on["tokens_reused"] == len(STORY)
    assert finish(elsewhere.home, "verify", root)["failed"] == []
    absent = Cid.of(b"absent", "dag-cbor", "sha2-256")
    assert finish(elsewhere.home, "fetch", absent, "--from", url, code=7)["error"]["kind"] == "peer-unreachable"


def test_only_what_was_published_is_served(story: Command) -> None:
    story("fork", "story", "--at", 32, "--name", "short")
    private = [story.json("show", name)["cid"] for name in ("short", "story")]
    blocks = [block["cid"] for block in story("--json", "walk", "story").lines]
    short = story.json("publish", "short", "--public", "--yes")["root"]
    with serving(story.home) as url:
        codes = [status(f"{url}/ipfs/{cid}?format=raw") for cid in (short, *blocks[1:3], *private)]
    assert codes == [200, 200, 404, 404, 404]


def test_a_port_that_is_taken(story: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = story.error(7, "serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "cannot listen" in error["message"]
    assert "--listen" in error["hint"]


@pytest.mark.parametrize(
    "address", ["8480", "localhost", "localhost:", ":80", "a:b:1", "::1:80", "x:123456", "127.0.0.1:65536"]
)
def test_an_address_that_is_none(story: Command, address: str) -> None:
    assert story.error(2, "serve", "--listen", address)["kind"] == "usage"


def test_a_person_sees_the_url_alone_on_stdout_and_is_told_that_nothing_is_published(story: Command) -> None:
    process = Forked(["--home", story.home, "serve", "--listen", "[::1]:0" if has_ipv6() else "127.0.0.1:0"])
    url = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert url.startswith("http://")
    assert (stdout, process.returncode) == ("", 130)
    assert "nothing is published yet" in stderr


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_ctrl_c_during_a_fetch_keeps_what_was_checked(story: Command, elsewhere: Command) -> None:
    root = Cid.parse(story.json("show", "story")["cid"])
    with DiskStore(story.home / "store", read_only=True) as store:
        blocks = {cid: store.get(cid) for cid in closure(store, root)}
        [tail] = load_root(store, root).tail.kv or ()

    stalled = threading.Event()

    def stall(talk: Exchange) -> None:
        """Send block by block, and nothing for the last one, which is asked for when the others have been checked."""
        if talk.is_car:
            talk.head("404 Not Found", content_length=0)
        elif talk.cid == tail:
            stalled.set()
            talk.hang()
        else:
            talk.honest()

    with lying(blocks, stall) as server:
        process = start(elsewhere.home, "-q", "fetch", root, "--from", server.url)
        assert stalled.wait(60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, "")
    error = json.loads(stdout)["error"]
    assert error["kind"] == "interrupted"
    assert f"cyberkv fetch {root} --from {server.url}" in error["hint"]
    assert elsewhere.json("list")["conversations"] == []
    assert elsewhere.json("fsck")["ok"] is True
    with lying(blocks) as server:
        fetched = elsewhere.json("fetch", root, "--from", server.url)
    assert (fetched["blocks_had"], fetched["blocks_fetched"]) == (len(blocks) - 2, 2)


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 5), ("", 5)])
def test_on_a_terminal_it_asks_and_no_is_the_default(story: Command, typed: str, code: int) -> None:
    with on_terminal(["--home", story.home, "publish", "story", "--public"]) as (child, process):
        child.expect_exact(STORY)
        child.expect_exact("cannot be undone")
        child.expect_exact("Publish it? [y/N]")
        child.sendline(typed)
        child.expect(pexpect.EOF)
    assert process.returncode == code, child.before
    assert story.json("stats")["published"] == (code == 0)
