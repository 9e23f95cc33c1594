"""Record a fixed text with a registered model in a process of its own and print the block CIDs.

Arguments: registry folder, home folder, threads, schedule (`chunks` | `decode` | `naive`), tokens. The naive schedule
prefills half and decodes the rest with keys that are split in another way: what engines do that do not seal.
"""

import json
import sys
from pathlib import Path

import torch

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.attention import panels
from cyberkv.runtime.canonical import canonical_step, single_step
from cyberkv.runtime.engine import build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry
from cyberkv.runtime.sealing import store_blocks


def main(registry: Path, home: Path, threads: int, schedule: str, count: int) -> None:
    torch.set_num_threads(threads)
    models = Registry(registry)
    loaded = models.load(models.records()[0])
    tokens = [(7919 * i * i + 104729 * i + 13) % (loaded.config.vocab_size - 32) + 16 for i in range(count)]
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        engine = build_engine(loaded, store, index)
        live = Live(engine)
        if schedule == "chunks":
            live.append(tokens)
        elif schedule == "decode":
            live.append(tokens[: count // 3])
            for token in tokens[count // 3 :]:
                live.decode(token)
        else:
            panels.PANEL_KEYS = 64
            live.sequence.extend_table(count)
            canonical_step(engine.decoder, live.sequence, tokens[: count // 2], 0)
            single_step(engine.decoder, live.sequence, tokens[count // 2 :], count // 2)
            live.tokens = tokens
            sealed = live._name_full()
            assert sealed
            store_blocks(store, index, sealed)
        leaves = [str(leaf) for cid in live.blocks for leaf in Block.decode(store.get(cid)).kv]
        print(json.dumps({"domain": engine.domain.name, "blocks": [str(cid) for cid in live.blocks],
                          "leaves": leaves, "reused": live.counts.tokens_reused}))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
