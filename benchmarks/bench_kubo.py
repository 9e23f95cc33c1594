"""A conversation put on a Kubo node, and brought from here, against the node's own ways to do the same.

Every publication goes into a fresh node with its default datastore, which syncs every file, and ends with the root
pinned, however the blocks came there. `ipfs dag import` reads a CAR file that is there already; `block/put` is called
for one block after the other over one connection. Fetching, over loopback from a real `serve` process into a fresh
home, checked and durable, is compared with reading what the node's RPC exports and throwing it away. Leaves are of
256 KiB.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers.kubo import KuboRpc, RpcAddress
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import PublishPlan, plan_publish, publish_car, publish_here
from cyberkv.cybergraph.transfer.kubo import publish_kubo

from . import made_up
from .bench_transfer import fetched, serving
from .common import Claim, options, report, scratch
from .kubo_node import BINARY, Node, fresh_node, put_each
from .store_peers import MIB

LEAF_BYTES = 256 << 10
PUT_BAR, IMPORT_BAR, FETCH_BAR = 3, 1.5, 3


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    if not BINARY.exists():
        reason = f"no Kubo at {BINARY}, which tests/compat/install.sh builds"
        print(f"Kubo: not measured, {reason}", file=sys.stderr)
        if args.json:
            print(json.dumps({"title": "Kubo", "skipped": reason, "claims": [], "figures": {}}))
        return 0
    size_bytes, repeats = (16 * MIB, 1) if args.quick else (256 * MIB, 3)
    claims: list[Claim] = []
    figures: dict[str, float] = {}
    with (
        scratch(args.folder) as folder,
        DiskStore(folder / "home/store") as store,
        Index(folder / "home/index") as index,
    ):
        root = made_up.record(store, size_bytes, leaf_bytes=LEAF_BYTES, leaf_hash="blake3")
        plan = plan_publish(store, index, root, "public")
        _publishing(folder, store, index, plan, repeats, claims, figures)
        publish_here(store, index, plan)
        _fetching(folder, store, index, plan, repeats, claims, figures)
    return report(args, "Kubo", claims, figures)


def _publishing(
    folder: Path,
    store: DiskStore,
    index: Index,
    plan: PublishPlan,
    repeats: int,
    claims: list[Claim],
    figures: dict[str, float],
) -> None:
    car = folder / "ready.car"
    publish_car(store, plan, car)
    works: dict[str, Callable[[Node], object]] = {
        "publish_kubo": lambda node: _publish(store, index, plan, node),
        "ipfs dag import": lambda node: node.run("dag", "import", car),
        "one block/put a block": lambda node: _put_each(store, plan, node),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            with fresh_node(folder) as node:
                start_s = time.perf_counter()
                work(node)
                times[name].append(time.perf_counter() - start_s)
                if not node.has(plan.root):
                    raise RuntimeError(f"{name} did not pin the root")
    car.unlink()
    ours_s, import_s, put_s = (min(each) for each in times.values())
    claims += [
        Claim("publish to Kubo against one block/put a block", put_s / ours_s, PUT_BAR),
        Claim("publish to Kubo against ipfs dag import", ours_s / import_s, IMPORT_BAR, at_most=True),
    ]
    figures |= {f"{name}, MB/s": plan.bytes / min(each) / 1e6 for name, each in times.items()}


def _publish(store: DiskStore, index: Index, plan: PublishPlan, node: Node) -> None:
    with closing(KuboRpc(RpcAddress.parse(node.api))) as rpc:
        publish_kubo(store, index, plan, rpc, "cyberkv/bench")


def _put_each(store: DiskStore, plan: PublishPlan, node: Node) -> None:
    blocks: Iterator[tuple[Cid, Buffer]] = ((cid, store.get(cid)) for cid in plan.cids)
    with closing(node.connection()) as connection:
        put_each(connection, blocks)
        connection.request("POST", f"/api/v0/pin/add?arg={plan.root}")
        with connection.getresponse() as answer:
            answer.read()


def _fetching(
    folder: Path,
    store: DiskStore,
    index: Index,
    plan: PublishPlan,
    repeats: int,
    claims: list[Claim],
    figures: dict[str, float],
) -> None:
    ours: list[float] = []
    exports: list[float] = []
    with serving(folder / "home") as (url, _), fresh_node(folder) as node:
        _publish(store, index, plan, node)
        for _ in range(repeats):
            exports.append(_export_s(node, plan))
            ours.append(fetched(folder / "other", plan.root, url)["seconds"])
    claims.append(Claim("fetch from the gateway against ipfs dag export", min(exports) / min(ours), FETCH_BAR))
    figures |= {
        "fetch from the gateway, MB/s": plan.bytes / min(ours) / 1e6,
        "dag export over HTTP, thrown away, MB/s": plan.bytes / min(exports) / 1e6,
    }


def _export_s(node: Node, plan: PublishPlan) -> float:
    buffer, read_bytes = bytearray(MIB), 0
    with closing(node.connection()) as connection:
        start_s = time.perf_counter()
        connection.request("POST", f"/api/v0/dag/export?arg={plan.root}&progress=false")
        with connection.getresponse() as answer:
            while count := answer.readinto(buffer):
                read_bytes += count
        took_s = time.perf_counter() - start_s
    if read_bytes < plan.bytes:
        raise RuntimeError(f"the node exported {read_bytes} bytes of {plan.bytes}")
    return took_s


if __name__ == "__main__":
    raise SystemExit(main())
