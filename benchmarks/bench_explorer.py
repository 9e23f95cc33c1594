"""Pages of a long conversation, over loopback from a real server: how long each takes, and how large it is.

A chain of 100,000 blocks of the 8B shape on a disk, with forks at twenty places, all published. Its blocks share their
leaves, so that it takes little room; a page reads a block's leaves once, as it would others. The tokenizer is a
stand-in of one word a token. Each page is asked of servers that have read nothing yet, and then again and again. The
very first page of all is asked of the first server of this process, which has everything to get ready.
"""

import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import median
from time import perf_counter

from cyberkv.cybergraph.chain import build_root, closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import GatewayServer, Published, build_app
from cyberkv.cybergraph.gateway.pages import Lookups, Pages
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block
from cyberkv.cybergraph.store import DiskStore, Store
from cyberkv.runtime.norms import block_norms

from . import made_up
from .common import Claim, options, report, scratch

BAR_MS = 100.0
BAR_KB = 60.0
FORKS = 20
LEAF_BYTES = 256 << 10
BATCH = 4096
FRESH = 3
"""Servers that each page is asked of: the one that is disturbed least counts."""


class _Words:
    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"word{token % 977} " for token in tokens)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    blocks, repeats = (600, 2) if args.quick else (100_000, 20)
    with (
        scratch(args.folder) as folder,
        DiskStore(folder / "store") as store,
        Index(folder / "index") as index,
    ):
        roots = _fill(store, index, blocks)
        paths = _paths(roots, blocks)
        first_ms, again_ms, size_bytes = {}, {}, {}
        very_first_ms = _times(store, index, paths["conversation"], 1)[0][0]
        for name, path in paths.items():
            rounds = [_times(store, index, path, repeats) for _ in range(FRESH)]
            first_ms[name] = min(times[0][0] for times in rounds)
            again_ms[name] = median(ms for times in rounds for ms, _ in times[1:])
            size_bytes[name] = rounds[0][0][1]
    slowest, largest = max(first_ms, key=first_ms.__getitem__), max(size_bytes, key=size_bytes.__getitem__)
    claims = [
        Claim("very first page of a process: conversation", very_first_ms, BAR_MS, "ms", at_most=True),
        Claim(f"slowest page for a new server: {slowest}", first_ms[slowest], BAR_MS, "ms", at_most=True),
        Claim("slowest page after that", max(again_ms.values()), BAR_MS, "ms", at_most=True),
        Claim(f"largest page: {largest}", size_bytes[largest] / 1000, BAR_KB, "KB", at_most=True),
    ]
    figures = {"blocks of the chain": float(blocks), "conversations published": float(len(roots))}
    for name in paths:
        figures[f"{name}: first, ms"] = first_ms[name]
        figures[f"{name}: again, ms"] = again_ms[name]
        figures[f"{name}: KB"] = size_bytes[name] / 1000
    return report(args, "Explorer pages", claims, figures)


def _fill(store: Store, index: Index, blocks: int) -> list[Cid]:
    """Record and publish the chain and its forks; give their roots, the whole chain's first."""
    model = store.put_node(made_up.model(LEAF_BYTES, "blake3"))
    named = [
        (Cid.of(data, "raw", "blake3"), data)
        for data, _ in zip(made_up.leaves(LEAF_BYTES), range(made_up.BLOCK_BYTES // LEAF_BYTES), strict=False)
    ]
    store.put_many(named)
    kv = tuple(cid for cid, _ in named)

    def grow(chain: list[Cid], number: int, seed: int) -> list[Cid]:
        made: list[tuple[Cid, bytes]] = []
        for at in range(len(chain), len(chain) + number):
            tokens = tuple((at * made_up.BLOCK_SIZE + i) * 31 % 50_000 + seed for i in range(made_up.BLOCK_SIZE))
            node = Block(model, chain[-1] if chain else None, tokens, kv).encode()
            chain.append(Cid.of(node, "dag-cbor", "sha2-256"))
            made.append((chain[-1], node))
        for start in range(0, len(made), BATCH):
            store.put_many(made[start : start + BATCH], hashed=True)
        return chain

    def root(chain: list[Cid], title: str, parent: Cid | None, fork_at: int | None) -> Cid:
        cid = build_root(
            store, model=model, block_size=made_up.BLOCK_SIZE, blocks=chain, tail=EMPTY_TAIL, title=title,
            parent=parent, fork_at=fork_at, payload_bytes=len(chain) * made_up.BLOCK_BYTES,
        )  # fmt: skip
        index.publish(cid, closure(store, cid))
        return cid

    whole = grow([], blocks, 0)
    roots = [root(whole, "the whole", None, None)]
    for number in range(FORKS):
        at = blocks * (number + 1) // (FORKS + 1)
        fork = grow(whole[:at], 100, number + 1)
        roots.append(root(fork, f"fork {number}", roots[0], at * made_up.BLOCK_SIZE))
    return roots


def _paths(roots: list[Cid], blocks: int) -> dict[str, str]:
    segment, last = blocks // 2 // 256, roots[-1]
    return {
        "home": "/",
        "conversation": f"/ipfs/{roots[0]}",
        "its middle": f"/ipfs/{roots[0]}?block={blocks // 2}",
        "segment": f"/ipfs/{roots[0]}/segments/{segment}",
        "block": f"/ipfs/{roots[0]}/segments/{segment}/links/17/to",
        "model": f"/ipfs/{roots[0]}/model",
        "comparison": f"/diff?a={roots[0]}&b={last}",
    }


@contextmanager
def _serving(store: Store, index: Index) -> Iterator[str]:
    """Serve pages from a thread, on a free port; gives `host:port`."""
    content, ready, urls = Published(store, index), threading.Event(), list[str]()

    def is_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    lookups = Lookups(text=lambda _: _Words(), norms=block_norms)
    server = GatewayServer(build_app(content, Pages(content, lookups)), "127.0.0.1", 0, is_ready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    ready.wait()
    try:
        yield urls[0].removeprefix("http://")
    finally:
        server.should_exit = True
        thread.join()


def _times(store: Store, index: Index, path: str, repeats: int) -> list[tuple[float, int]]:
    """Ask a new server once and then `repeats` times; see `_ask`."""
    with _serving(store, index) as address, closing(http.client.HTTPConnection(address)) as connection:
        connection.connect()
        return [_ask(connection, path) for _ in range(1 + repeats)]


def _ask(connection: http.client.HTTPConnection, path: str) -> tuple[float, int]:
    """Ask for a page; give the time to its last byte in milliseconds, and its bytes."""
    start = perf_counter()
    connection.request("GET", path, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    body = answer.read()
    taken_ms = (perf_counter() - start) * 1e3
    if answer.status != 200 or b"</html>" not in body:
        raise SystemExit(f"{path} answered {answer.status}")
    return taken_ms, len(body)


if __name__ == "__main__":
    raise SystemExit(main())
