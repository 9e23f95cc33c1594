"""Several conversations from a gateway: of a model's file that is served, by the CID of its card."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.gateway import build_app
from cyberkv.cybergraph.gateway.carcontent import CarContent
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import ModelCard
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch_several, plan_publish, preload
from cyberkv.cybergraph.transfer.card import CardPlan, publish_card, sign_card
from cyberkv.cybergraph.transfer.single import find_node
from tests.wire.conftest import Served, running
from tests.wire.synthetic import MODEL, record

PeerAt = Callable[..., HttpPeer]
Publish = Callable[..., Served]
KEY = Identity(bytes(range(32)))


def test_a_card_that_is_served_is_loaded_by_its_cid(index: Index, tmp_path: Path, peer_at: PeerAt) -> None:
    theirs, ours = MemoryStore(), MemoryStore()
    roots = (record(theirs, blocks=300), record(theirs, blocks=310), record(theirs, blocks=5, seed="b"))
    card = sign_card(ModelCard(MODEL.cid(), "tiny", "MIT", roots, None), KEY)
    plans = tuple(plan_publish(theirs, index, root, "public") for root in roots)
    publish_card(theirs, CardPlan(card, MODEL, plans), tmp_path / "tiny.model")
    with CarContent(tmp_path / "tiny.model") as content, running(build_app(content)) as served:
        peer = peer_at(served.url)
        found = find_node(ours, card.cid(), [peer])
        assert found == card
        reports = preload(ours, index, card, MODEL, [peer], trusted={KEY.public().signing})
        asked = Counter(served.requests)
    assert set(ours.cids()) == {*closure(theirs, *roots), card.cid()}
    assert sum(report.blocks_fetched for report in reports) == len(set(closure(theirs, *roots)))
    assert [report.refused for report in reports] == [(), (), ()]
    assert max(asked.values()) == 1, "nothing is asked for twice"
    assert len(asked) < 60, "a whole segment comes as one stream, of one that is shared what is lacking"


def test_two_gateways_share_the_work(index: Index, publish: Publish, peer_at: PeerAt) -> None:
    theirs, ours = MemoryStore(), MemoryStore()
    roots = [record(theirs, blocks=40, seed=seed) for seed in "ab"]
    one, two = (publish(theirs, *roots) for _ in range(2))
    reports = fetch_several(ours, index, roots, [peer_at(one.url), peer_at(two.url)])
    assert set(ours.cids()) == set(closure(theirs, *roots))
    assert reports[0].sources == reports[1].sources
    assert sum(each.blocks for each in reports[0].sources) == len(set(ours.cids()))
