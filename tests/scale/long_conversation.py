"""Records one long conversation and does everything to it that a home does; reports what it found and took as JSON."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.gc import collect
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import DiskStore, Store
from cyberkv.cybergraph.transfer import fetch, plan_publish, publish_car
from tests.scale.measure import Measured
from tests.wire.synthetic import BLOCK_SIZE, MODEL

SMALL = replace(
    MODEL, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, hidden_size=2, attention=("full",),
    rope=replace(MODEL.rope, rotary_dims=2), layers_per_leaf=1,
)  # fmt: skip
LEAF_BYTES = 2 * BLOCK_SIZE * 2 * 4
BUDGET_BYTES = 16 << 20
"""Less than the pages that the leaves of 5,000 blocks take, though far more than their bytes."""


def _blocks(model: Cid, count: int, chained: list[Cid]) -> Iterator[tuple[Cid, bytes]]:
    for at in range(count):
        rows = at.to_bytes(8, "big") * (LEAF_BYTES // 8)
        leaf = Cid.of(rows, "raw", "blake3")
        tokens = tuple(range(at * BLOCK_SIZE, (at + 1) * BLOCK_SIZE))
        node = Block(model, chained[-1] if chained else None, tokens, (leaf,)).encode()
        chained.append(Cid.of(node, "dag-cbor", "sha2-256"))
        yield leaf, rows
        yield chained[-1], node


def record(store: Store, count: int) -> Cid:
    model, chained = store.put_node(SMALL), list[Cid]()
    store.put_many(_blocks(model, count, chained), hashed=True)
    return chain.build_root(
        store, model=model, block_size=BLOCK_SIZE, blocks=chained, tail=EMPTY_TAIL, payload_bytes=count * LEAF_BYTES
    )


def _export(measured: Measured, store: Store, index: Index, root: Cid, path: Path) -> int:
    plan = measured("plan", lambda: plan_publish(store, index, root, "public"))
    measured("export", lambda: publish_car(store, plan, path))
    return plan.blocks


def main(count: int, folder: Path) -> None:
    measured = Measured()
    found: dict[str, object] = {}
    sys.setrecursionlimit(150)  # nothing may go as deep as the conversation is long
    with DiskStore(folder / "here/store") as store, Index(folder / "here/index") as index:
        root = measured("record", lambda: record(store, count))
        loaded = chain.load_root(store, root)
        found["walked"] = measured("walk", lambda: sum(1 for _ in chain.walk(store, loaded)))
        found["missing"] = len(measured("missing", lambda: chain.missing(store, root)))
        found["planned"] = _export(measured, store, index, root, folder / "long.car")
        before = sum(1 for _ in store.cids())
        at = (count // 2) * BLOCK_SIZE
        fork, found["shared"] = measured("fork", lambda: chain.fork_root(store, root, at, block_bytes=LEAF_BYTES))
        found["forked"] = sum(1 for _ in chain.block_cids(store, chain.load_root(store, fork)))
        found["new_by_fork"] = sum(1 for _ in store.cids()) - before
        index.set_head("long", root, "")
        found["indexed"] = measured("rebuild", lambda: index.rebuild(store)).blocks
        found["findings"] = len(measured("fsck", lambda: list(fsck(store, index))))
        garbage, _ = measured("gc", lambda: collect(store, index))
        found["collected"] = len(garbage.nodes) + len(garbage.leaves)
        found["kept"] = garbage.kept_blocks
    with DiskStore(folder / "there/store") as store, Index(folder / "there/index") as index:
        with CarFilePeer(folder / "long.car") as peer:
            report = measured("import", lambda: fetch(store, index, root, [peer], budget_bytes=BUDGET_BYTES))
            found["imported"], found["had"] = report.blocks_fetched, report.blocks_had
            again = measured("import again", lambda: fetch(store, index, root, [peer]))
            found["imported_again"] = again.blocks_fetched
        found["missing_there"] = len(chain.missing(store, root))
    print(json.dumps(found | {"peak_bytes": measured.peak_bytes}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
