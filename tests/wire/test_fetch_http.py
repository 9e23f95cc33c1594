from collections.abc import Callable

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from tests.wire.conftest import Served
from tests.wire.synthetic import contents, conversation

Publish = Callable[..., Served]
PeerAt = Callable[[str], HttpPeer]


def test_a_fetched_conversation_is_byte_equal(index: Index, publish: Publish, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=300)
    served = publish(origin, root)
    store = MemoryStore()
    report = fetch(store, index, root, [peer_at(served.url)])
    assert dict.fromkeys(store.cids()) == dict.fromkeys(closure(origin, root))
    assert contents(store, root) == contents(origin, root)
    assert (report.blocks_had, report.blocks_fetched) == (0, report.blocks_total)
    print(report, len(served.requests), served.body_bytes, served.requests[:5])
