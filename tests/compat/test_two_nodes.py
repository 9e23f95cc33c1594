"""Two Kubo nodes on this machine: what is published to one is found and fetched by the other, over libp2p."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.peers.kubo import KuboPeer
from tests.compat.daemon import Daemon
from tests.compat.home import cyberkv, grow, held, make_home, publish

pytestmark = pytest.mark.compat

BLOCKS = 300
"""Two segments."""


def received(node: Daemon) -> int:
    """Blocks that came from other nodes."""
    return int(node.run("bitswap", "stat").partition("blocks received:")[2].split()[0])


def test_a_second_node_fetches_the_whole_conversation_from_the_first(
    tmp_path: Path, kubo: Callable[..., Daemon]
) -> None:
    here = tmp_path / "here"
    roots = make_home(here, talk=BLOCKS, other=2)
    first, second = (kubo(name, Routing__Type="none") for name in ("first", "second"))
    publish(here, "talk", "--kubo", first.api)
    blocks = held(here, roots["talk"])

    alone = second.attempt("pin", "add", "--timeout=3s", str(roots["talk"]))
    assert alone.returncode != 0, "the second node has it from somewhere else"
    second.run("swarm", "connect", f"{first.swarm}/p2p/{first.peer_id}")
    second.run("pin", "add", str(roots["talk"]))
    first.kill()

    assert second.attempt("block", "get", "--timeout=1s", str(roots["other"])).returncode != 0, "never published"
    with KuboPeer(second.api) as peer:
        assert dict(peer.get_dag(roots["talk"])) == blocks
    second.export(roots["talk"], tmp_path / "talk.car")
    for source in (f"kubo:{second.api}", second.gateway, tmp_path / "talk.car"):
        there = tmp_path / f"there-{len(list(tmp_path.iterdir()))}"
        got = cyberkv(there, "fetch", roots["talk"], "--from", source)
        assert got["blocks_fetched"] == got["blocks_total"] > 2 * BLOCKS
        assert held(there, roots["talk"]) == blocks


def test_of_a_conversation_that_grew_only_the_rest_travels(tmp_path: Path, kubo: Callable[..., Daemon]) -> None:
    here = tmp_path / "here"
    short, long = make_home(here, talk=256)["talk"], grow(here, "talk", BLOCKS)
    first, second = (kubo(name, Routing__Type="none") for name in ("first", "second"))
    second.run("swarm", "connect", f"{first.swarm}/p2p/{first.peer_id}")
    publish(here, str(short), "--kubo", first.api)
    second.run("pin", "add", str(short))
    before = received(second)
    publish(here, "talk", "--kubo", first.api)
    second.run("pin", "update", "--unpin=false", str(short), str(long))
    assert received(second) - before == len(held(here, long).keys() - held(here, short).keys())
    assert {str(short), str(long)} <= set(second.run("pin", "ls", "--type=recursive", "--quiet").split())


def test_an_online_node_announces_the_root_and_others_find_it(tmp_path: Path, kubo: Callable[..., Daemon]) -> None:
    here = tmp_path / "here"
    root = make_home(here, talk=5)["talk"]
    first, second = (kubo(name, Routing__Type="dhtserver", Provide__Strategy="roots") for name in ("first", "second"))
    lonely = publish(here, "talk", "--kubo", first.api)["kubo"]
    assert (lonely["announced"], bool(lonely["note"])) == (False, True)

    second.run("swarm", "connect", f"{first.swarm}/p2p/{first.peer_id}")
    assert publish(here, "talk", "--kubo", first.api)["kubo"]["announced"]
    found = second.run("routing", "findprovs", "--num-providers=1", str(root)).split()
    assert found == [first.peer_id]
    leaf = next(cid for cid in held(here, root) if cid.codec == "raw")
    of_leaf = second.attempt("routing", "findprovs", "--timeout=2s", "--num-providers=1", str(leaf))
    assert of_leaf.stdout == "", "only roots are announced"


def test_a_node_imports_our_file_and_writes_one_that_we_read(tmp_path: Path, kubo: Callable[..., Daemon]) -> None:
    here, there, ours, theirs = (tmp_path / name for name in ("here", "there", "ours.car", "theirs.car"))
    root = make_home(here, talk=BLOCKS)["talk"]
    publish(here, "talk", "--car", ours)
    node = kubo("node", online=False)
    assert str(root) in node.run("dag", "import", str(ours))
    node.export(root, theirs)
    cyberkv(there, "fetch", root, "--from", theirs)
    assert held(there, root) == held(here, root)
    ours.write_bytes(ours.read_bytes()[:-1])
    assert node.attempt("dag", "import", str(ours)).returncode != 0
