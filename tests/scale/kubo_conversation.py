"""Puts one long conversation on a Kubo node and brings it back in every way; reports what it found and took as JSON."""

import json
import sys
from contextlib import closing
from pathlib import Path

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer, Peer
from cyberkv.cybergraph.peers.kubo import KuboPeer, KuboRpc, RpcAddress
from cyberkv.cybergraph.store import DiskStore, Store
from cyberkv.cybergraph.transfer import fetch, plan_publish
from cyberkv.cybergraph.transfer.kubo import publish_kubo
from tests.scale.long_conversation import BUDGET_BYTES, record
from tests.scale.measure import Measured


def _differing(store: Store, peer: Peer, root: Cid) -> int:
    """Count blocks of a graph as a peer streams it that are not here, byte for byte, or here and not in it."""
    lacking, wrong = set(chain.closure(store, root)), 0
    for cid, data in peer.get_dag(root):
        wrong += cid not in lacking or bytes(data) != store.get(cid)
        lacking.discard(cid)
    return wrong + len(lacking)


def main(count: int, folder: Path, api: str, gateway: str) -> None:
    measured = Measured()
    found: dict[str, object] = {}
    sys.setrecursionlimit(150)  # nothing may go as deep as the conversation is long
    with DiskStore(folder / "here/store") as store, Index(folder / "here/index") as index:
        root = record(store, count)
        plan = plan_publish(store, index, root, "public")
        with closing(KuboRpc(RpcAddress.parse(api))) as rpc:
            sent = measured("publish", lambda: publish_kubo(store, index, plan, rpc, "cyberkv/long"))
            again = measured("again", lambda: publish_kubo(store, index, plan, rpc, "cyberkv/long"))
        found |= {"root": str(root), "blocks": plan.blocks, "sent": sent.parts_sent, "had": sent.parts_had}
        found |= {"sent_again": again.parts_sent, "bytes_again": again.bytes_sent}
        with KuboPeer(api) as peer, HttpPeer(gateway) as other:
            found["export_differs"] = measured("export", lambda: _differing(store, peer, root))
            found["gateway_differs"] = measured("gateway", lambda: _differing(store, other, root))
    with DiskStore(folder / "there/store") as store, Index(folder / "there/index") as index:
        with KuboPeer(api) as peer:
            got = measured("fetch", lambda: fetch(store, index, root, [peer], budget_bytes=BUDGET_BYTES))
        found |= {
            "fetched": got.blocks_fetched,
            "refused": len(got.refused),
            "missing": len(chain.missing(store, root)),
        }
    print(json.dumps(found | {"peak_bytes": measured.peak_bytes}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5])
