"""A Kubo node that holds nothing pins a conversation over HTTP from `cyberkv serve`, which a router names to it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.peers.kubo import KuboPeer
from tests.compat.certificate import make_certificate
from tests.compat.daemon import Daemon
from tests.compat.home import cyberkv, held, make_home, publish, serving
from tests.compat.router import naming, only_by

pytestmark = pytest.mark.compat


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def roots(home: Path) -> dict[str, Cid]:
    """`talk` is public and of two segments; `secret` is not public."""
    made = make_home(home, talk=300, secret=3)
    publish(home, "talk")
    return made


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_node_pins_a_whole_conversation_from_our_gateway(
    home: Path, roots: dict[str, Cid], tmp_path: Path, kubo: Callable[..., Daemon], scheme: str
) -> None:
    words: list[object] = []
    if scheme == "https":
        certificate, key = make_certificate(tmp_path)
        words = ["--tls-cert", certificate, "--tls-key", key]
    with serving(home, *words) as url, naming(url) as routed:
        assert url.startswith(f"{scheme}://")
        node = kubo("node", **only_by(routed))
        node.run("pin", "add", "--name=talk", str(roots["talk"]))
        with KuboPeer(node.api) as peer:
            assert dict(peer.get_dag(roots["talk"])) == held(home, roots["talk"])
        refused = node.attempt("pin", "add", "--timeout=5s", str(roots["secret"]))
        assert refused.returncode != 0, "what was never published came out"
        assert any(str(roots["secret"]) in asked for asked in routed.targets), "it never looked for it"
        assert roots["secret"].digest not in node.digests()
        assert roots["talk"].digest in node.digests()


def test_without_a_router_that_names_us_nothing_arrives(
    home: Path, roots: dict[str, Cid], kubo: Callable[..., Daemon]
) -> None:
    with serving(home), naming("http://127.0.0.1:9") as routed:
        node = kubo("node", **only_by(routed))
        assert node.attempt("pin", "add", "--timeout=5s", str(roots["talk"])).returncode != 0
        assert routed.targets


def test_a_fetch_finds_our_gateway_by_asking_a_node(
    home: Path, roots: dict[str, Cid], tmp_path: Path, kubo: Callable[..., Daemon]
) -> None:
    """The node answers `/routing/v1` with what its own router told it."""
    with serving(home) as url, naming(url) as routed:
        node = kubo("node", Gateway__ExposeRoutingAPI=True, **only_by(routed))
        there, asked = tmp_path / "there", ("fetch", roots["talk"], "--router", node.gateway)
        refused = cyberkv(there, *asked, code=3)["error"]
        assert refused["kind"] == "block-not-found", "a router may not send us to addresses of this machine"
        got = cyberkv(there, *asked, "--allow-host", "127.0.0.1")
        assert (got["peers"], got["blocks_fetched"]) == ([url], got["blocks_total"])
        assert got["sources"][0]["router"] == node.gateway
        assert held(there, roots["talk"]) == held(home, roots["talk"])
