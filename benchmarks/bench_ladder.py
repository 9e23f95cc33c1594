"""The warm ladder: time until the first token of a prefix that lies in each of the four tiers, beside a prefill.

The same blocks are brought to one tier alone: rows of the pool (L0), host memory (L1), the store (L2, page cache warm),
or a gateway that another process serves over HTTP on this machine (L3, nothing in the store). Then the text is appended
and its next token chosen. The miss control is a prefill of as many other tokens by the same engine, in turns with them.
The move log has to say that each run read its own tier and no lower one.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.peers import open_peer
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.checkpoint import checkpoint
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live

from .bench_transfer import serving
from .common import Claim, options, report, scratch
from .real_model import load_smollm2, prompt

Hops = dict[tuple[Tier | None, Tier | None], int]
L0, L1, L2, L3 = Tier
HOPS: dict[Tier, tuple[tuple[Tier, Tier], ...]] = {L0: (), L1: ((L1, L0),), L2: ((L2, L0),), L3: ((L3, L2), (L2, L0))}
"""The way up from each tier: every block takes each of its hops once."""
BARS = {L0: 5.0, L1: 5.0, L2: 4.0, L3: 1.5}
"""How many times sooner than a prefill. What is left in each is one step of the model, and rotating the rows."""


def settle(engine: Engine, blocks: Sequence[Cid], tier: Tier) -> None:
    """Bring blocks to one tier, so that no nearer one has them; for L3, the store has nothing of them."""
    engine.residency.ensure(blocks).close()
    while tier is L1 and engine.residency.shelf.evict():
        pass
    if tier > L1:
        engine.residency.reset()
    if tier is L3:
        nodes = [Block.decode(engine.store.get(cid)) for cid in blocks]
        engine.store.delete_many([*blocks, *{leaf for node in nodes for leaf in node.kv}])


def first_token(engine: Engine, tokens: list[int]) -> tuple[int, Hops]:
    """Append a text and choose its next token. Returns it, with the hops that blocks took for it."""
    before = engine.residency.log.blocks.copy()
    live = Live(engine)
    try:
        live.append(tokens)
        token = int(live.next_logits().argmax())
        return token, dict(Counter(engine.residency.log.blocks) - before)
    finally:
        live.close()


def hops_of(tier: Tier, blocks: int) -> Hops:
    """Give the hops that a run from one tier takes."""
    return dict.fromkeys(HOPS[tier], blocks)


def know(index: Index, engine: Engine, tokens: list[int], blocks: Sequence[Cid]) -> None:
    """File blocks that another home computed in this numeric domain as if they had been computed here."""
    keys = prefix_keys(engine.model_cid, tokens, engine.geometry.block_size)
    before = [None, *blocks]
    index.add_blocks(
        IndexEntry(key, cid, prev, engine.model_cid, engine.domain.name)
        for key, cid, prev in zip(keys, blocks, before, strict=False)
    )


def took_s(work: Callable[[], tuple[int, Hops]]) -> tuple[float, int, Hops]:
    start_s = time.perf_counter()
    done = work()
    return time.perf_counter() - start_s, *done


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    length, rounds = (512, 1) if args.quick else (2048, 3)
    loaded = load_smollm2()
    tokens = prompt(length, loaded.config.vocab_size)
    best: dict[str, float] = {}
    with scratch(args.folder) as folder:
        with DiskStore(folder / "far" / "store") as store, Index(folder / "far" / "index") as index:
            far = build_engine(loaded, store, index)
            live = Live(far)
            live.append(tokens)
            expected, blocks = int(live.next_logits().argmax()), list(live.blocks)
            root = checkpoint(live, title="ladder", created="")
            index.publish(root, closure(store, root))
            live.close()
        with (
            serving(folder / "far") as (url, _), open_peer(url) as peer,
            DiskStore(folder / "near" / "store") as store, Index(folder / "near" / "index") as index,
        ):  # fmt: skip
            near = build_engine(loaded, store, index, domain=far.domain)
            near.host_bytes = 2 * len(blocks) * near.geometry.block_bytes
            near.sources, near.may_ask = [peer], lambda _: True
            know(index, near, tokens, blocks)
            for salt in range(1, rounds + 1):
                fresh = prompt(length, loaded.config.vocab_size, salt)
                taken_s, _, hops = took_s(lambda fresh=fresh: first_token(near, fresh))  # type: ignore[misc]
                if set(hops) != {(None, L0)}:
                    raise SystemExit(f"the miss control moved blocks: {hops}")
                best["prefill"] = min(best.get("prefill", taken_s), taken_s)
                for tier in Tier:
                    settle(near, blocks, tier)
                    taken_s, token, hops = took_s(lambda: first_token(near, tokens))
                    if token != expected or hops != hops_of(tier, len(blocks)):
                        raise SystemExit(f"{tier}: token {token} for {expected}, by way of {hops}")
                    best[str(tier)] = min(best.get(str(tier), taken_s), taken_s)
    claims = [
        Claim(f"first token after {length} tokens, {tier} vs prefill", best["prefill"] / best[str(tier)], bar)
        for tier, bar in BARS.items()
    ]
    return report(args, "The warm ladder", claims, {f"{name}, s": seconds for name, seconds in best.items()})


if __name__ == "__main__":
    raise SystemExit(main())
