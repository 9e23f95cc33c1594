"""Helia's verified-fetch at our gateway, which a router names to it: it reads blocks and refuses wrong ones."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from cyberkv.cybergraph.chain import load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import build_app
from cyberkv.cybergraph.gateway.content import Published
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.compat.router import naming
from tests.wire.conftest import Served, running
from tests.wire.synthetic import contents, record

pytestmark = pytest.mark.compat


class Tampering(Published):
    """Content that gives one block with a bit changed."""

    victim: Cid | None = None

    def get(self, cid: Any) -> bytes:
        data = super().get(cid)
        return bytes([data[0] ^ 1]) + data[1:] if cid == self.victim else data


class Talk(NamedTuple):
    """A public conversation that is being served."""

    content: Tampering
    gateway: Served
    router: str
    blocks: dict[Cid, bytes]
    root: Cid
    segment: Cid
    leaf: Cid
    secret: Cid


@pytest.fixture
def talk(index: Index) -> Iterator[Talk]:
    store = MemoryStore()
    root, secret = record(store), record(store, seed="secret")
    blocks = contents(store, root)
    index.publish(root, blocks)
    content = Tampering(store, index)
    segment = load_root(store, root).segments[0]
    leaf = next(cid for cid in blocks if cid.codec == "raw")
    with running(build_app(content)) as gateway, naming(gateway.url) as routed:
        yield Talk(content, gateway, routed.url, blocks, root, segment, leaf, secret)


def test_it_reads_root_segment_and_leaf(talk: Talk, javascript: Callable[..., Any]) -> None:
    wanted = (talk.root, talk.segment, talk.leaf)
    found = javascript("helia.mjs", talk.router, "hash", *wanted, talk.secret)
    for cid in wanted:
        assert found[str(cid)] == {"status": 200, "body": talk.blocks[cid].hex()}
    assert found[str(talk.secret)].get("status") != 200, "what was never published came out"
    assert any(str(talk.secret) in asked for asked in talk.gateway.requests), "it never asked for it"


def test_it_refuses_a_tampered_block(talk: Talk, javascript: Callable[..., Any]) -> None:
    for victim in (talk.segment, talk.leaf):
        talk.content.victim = victim
        found = javascript("helia.mjs", talk.router, "hash", victim, talk.root)
        assert any(str(victim) in asked for asked in talk.gateway.requests), "it never asked for it"
        assert found[str(victim)].get("status") != 200
        assert found[str(talk.root)]["status"] == 200


def test_without_blake3_it_reads_nodes_and_no_leaves(talk: Talk, javascript: Callable[..., Any]) -> None:
    found = javascript("helia.mjs", talk.router, "nohash", talk.root, talk.leaf)
    assert found[str(talk.root)]["status"] == 200
    assert found[str(talk.leaf)].get("status") != 200
