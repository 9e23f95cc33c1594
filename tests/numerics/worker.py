"""Record a fixed text with a registered model in a process of its own and print the block CIDs.

Arguments: registry folder, folder of homes, threads, tokens, and one or more times a home and a schedule (`chunks` |
`decode` | `naive`). The latter two prefill but for the last tokens and decode those, the naive one with keys that are
split in another way: what engines do that do not seal.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.attention import panels
from cyberkv.runtime.canonical import Domain, canonical_step, single_step
from cyberkv.runtime.engine import build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.sealing import store_blocks

DECODED_TOKENS = 64
"""Of a text that is longer by less than a panel or by more than one."""


def main(registry: Path, folder: Path, threads: int, count: int, *work: str) -> None:
    torch.set_num_threads(threads)
    models = Registry(registry)
    loaded, domain, done = models.load(models.records()[0]), None, []
    for home, schedule in zip(work[::2], work[1::2], strict=True):
        domain, found = record(loaded, domain, folder / home, schedule, count)
        done.append(found)
    print(json.dumps(done))


def record(
    loaded: LoadedModel, domain: Domain | None, home: Path, schedule: str, count: int
) -> tuple[Domain, dict[str, Any]]:
    tokens = [(7919 * i * i + 104729 * i + 13) % (loaded.config.vocab_size - 32) + 16 for i in range(count)]
    decoded = count - DECODED_TOKENS
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        engine = build_engine(loaded, store, index, domain=domain)
        live = Live(engine)
        if schedule == "chunks":
            live.append(tokens)
        elif schedule == "decode":
            live.append(tokens[:decoded])
            for token in tokens[decoded:]:
                live.decode(token)
        else:
            panels.PANEL_KEYS = 64
            live.sequence.extend_table(count)
            canonical_step(engine.decoder, live.sequence, tokens[:decoded], 0)
            single_step(engine.decoder, live.sequence, tokens[decoded:], decoded)
            live.tokens = tokens
            sealed = live._name_full()
            assert sealed
            store_blocks(store, index, sealed)
        leaves = [str(leaf) for cid in live.blocks for leaf in Block.decode(store.get(cid)).kv]
        return engine.domain, {
            "domain": engine.domain.name, "blocks": [str(cid) for cid in live.blocks], "leaves": leaves,
            "reused": live.counts.tokens_reused,
        }  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
