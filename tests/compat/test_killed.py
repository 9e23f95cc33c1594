"""Our server is killed while a node pins from it: nothing is lost, and a repeat moves only the rest."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.peers.kubo import KuboPeer
from tests.compat.daemon import Daemon
from tests.compat.home import held, make_home, publish, serving, start_serving
from tests.compat.request import ask
from tests.compat.router import naming, only_by

pytestmark = pytest.mark.compat

BLOCKS = 700
ENOUGH = 200
"""The server is killed once it has given so many objects of three times `BLOCKS`."""


def given(url: str) -> int:
    """Blocks that a server has given, one by one."""
    text = ask(url, "/metrics").body.decode()
    return int(float(re.findall(r'^cyberkv_gateway_blocks_total{way="single"} (\S+)$', text, re.MULTILINE)[0]))


def test_a_repeat_after_a_kill_moves_only_the_rest(tmp_path: Path, kubo: Callable[..., Daemon]) -> None:
    home = tmp_path / "home"
    root = make_home(home, talk=BLOCKS)["talk"]
    publish(home, "talk")
    blocks = held(home, root)
    process, url = start_serving(home)
    with naming(url) as routed:
        node = kubo("node", **only_by(routed))
        pinning = node.begin("pin", "add", str(root))
        while given(url) < ENOUGH:
            assert pinning.poll() is None
            time.sleep(0.01)
        process.kill()
        process.communicate()
        pinning.kill()
        pinning.wait()
        node.stop()  # a running node leaves a server that failed alone for a minute
        node.start()
        had = node.digests() & {cid.digest for cid in blocks}
        assert 0 < len(had) < len(blocks)
        with serving(home, listen=url.removeprefix("http://")) as again:
            node.run("pin", "add", str(root))
            assert 0 < given(again) <= len(blocks) - len(had)
    with KuboPeer(node.api) as peer:
        assert dict(peer.get_dag(root)) == blocks
