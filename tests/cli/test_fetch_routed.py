"""`fetch --router`: a router is asked only where one is named, and what it names is held at arm's length."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cyberkv.cli.models import how_to_register
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import Refused
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import open_peer, reach
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command
from tests.wire.liar import Liar, lying
from tests.wire.router import RouterServer, gateway_record, in_json, in_lines, routing
from tests.wire.synthetic import MODEL, contents
from tests.wire.test_routing import probed


@pytest.fixture
def root(story: Command) -> str:
    cid: str = story.json("show", "story")["cid"]
    return cid


@pytest.fixture
def gateway(story: Command, root: str) -> Iterator[Liar]:
    with DiskStore(story.home / "store", read_only=True) as store:
        blocks = contents(store, Cid.parse(root))
    with lying(blocks, probed) as server:
        yield server


@pytest.fixture
def router(gateway: Liar) -> Iterator[RouterServer]:
    with routing(in_lines([gateway_record(gateway.url)])) as server:
        yield server


def sources(command: Command) -> list[str]:
    with Index(command.home / "index", read_only=True) as index:
        return [source for named in index.sources().values() for source in named]


def test_a_router_leads_to_a_gateway(elsewhere: Command, root: str, gateway: Liar, router: RouterServer) -> None:
    result = elsewhere("--json", "fetch", root, "--router", router.url, "--allow-host", "127.0.0.1")
    [source] = result.json["sources"]
    assert (source["peer"], source["router"]) == (gateway.url, router.url)
    assert source["blocks"] == result.json["blocks_fetched"] > 0
    assert sources(elsewhere) == [gateway.url]  # a host that was allowed counts as named
    page = elsewhere("fetch", root, "--router", router.url, "--allow-host", "127.0.0.1")
    assert f"named by {router.url}" in page.stdout


def test_without_a_router_none_is_asked(elsewhere: Command, root: str, gateway: Liar, router: RouterServer) -> None:
    result = elsewhere.json("fetch", root, "--from", gateway.url)
    assert router.targets == []
    assert [source["router"] for source in result["sources"]] == [None]


def test_private_addresses_that_a_router_names_are_not_contacted(
    elsewhere: Command, root: str, gateway: Liar, router: RouterServer
) -> None:
    result = elsewhere("--json", "fetch", root, "--router", router.url, ok=False)
    assert result.exit_code == 3
    error = result.json["error"]
    assert (error["kind"], error["cid"], error["routers"]) == ("block-not-found", root, [router.url])
    assert "no public address" in result.stderr
    assert gateway.targets == []
    assert elsewhere.json("list")["conversations"] == []


def test_a_source_beside_a_useless_router_is_enough(elsewhere: Command, root: str, gateway: Liar) -> None:
    with routing(in_json([])) as useless:
        result = elsewhere.json("fetch", root, "--router", useless.url, "--from", gateway.url)
    assert len(useless.targets) == 1
    assert [source["peer"] for source in result["sources"]] == [gateway.url]
    with routing(in_json([])) as useless:  # nothing is missing now, so nobody is needed
        assert elsewhere.json("fetch", root, "--router", useless.url)["blocks_fetched"] == 0


def test_a_routed_gateway_is_remembered_as_one(
    elsewhere: Command, root: str, gateway: Liar, router: RouterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(reach, "is_public", lambda _: True)
        elsewhere("fetch", root, "--router", router.url)
    [source] = sources(elsewhere)
    assert source == f"routed:{gateway.url}"
    with open_peer(source) as peer, pytest.raises(Refused):  # where its address is private by now
        list(peer.get_many([Cid.parse(root)]))
    with open_peer(gateway.url) as peer:
        assert len(list(peer.get_many([Cid.parse(root)]))) == 1


def test_what_is_no_router_or_host_is_a_mistake_of_the_command_line(elsewhere: Command, root: str) -> None:
    assert elsewhere.error(2, "fetch", root, "--router", "ftp://a")["kind"] == "bad-reference"
    error = elsewhere.error(2, "fetch", root, "--from", "http://127.0.0.1:1", "--allow-host", "http://a")
    assert error["kind"] == "bad-reference"


def test_how_to_register_a_model() -> None:
    built_in = replace(MODEL, num_layers=30, hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64)
    assert "model add smollm2" in how_to_register(built_in)
    assert "model add PATH" in how_to_register(replace(built_in, num_layers=31))
    plain = replace(built_in, block_size=16, kv_dtype="f32", leaf_hash="blake3", kv_quant_scheme="none")
    assert "--" not in how_to_register(plain)
    other = replace(plain, block_size=64, kv_quant_scheme="int8/row/f32")
    assert "model add smollm2 --block-size 64 --kv-quant int8`" in how_to_register(other)
