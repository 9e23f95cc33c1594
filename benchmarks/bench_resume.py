"""Resuming a recorded conversation against computing it again, and against loading the same cache from other files.

Counted for us: opening the store, reading, verifying every leaf, rotating, and one step for the next token's scores.
The peers load and put into place without verifying, and pay no step.
"""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import build_engine
from cyberkv.runtime.live import Live

from .common import Claim, best_s, options, report, scratch
from .real_model import load_peer, load_smollm2, prompt


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    count = 256 if args.quick else 2048
    repeats = 1 if args.quick else 5
    loaded = load_smollm2()
    tokens = prompt(count, loaded.config.vocab_size)
    with scratch(args.folder) as folder, torch.no_grad():
        with DiskStore(folder / "store") as store, Index(folder / "index") as index:
            engine = build_engine(loaded, store, index)
            live = Live(engine)

            def prefill() -> None:
                live.append(tokens)
                live.next_logits()

            prefill_s = best_s(prefill, 1)
            root = checkpoint(live, title="bench", created="")
            live.close()
            again = Live(engine)
            index.remove_blocks(live.blocks)

            def prefill_again() -> None:
                again.append(tokens)
                again.next_logits()

            prefill_s = min(prefill_s, best_s(prefill_again, 1))
            expected = again.next_logits()
            again.close()

        def resume_cold() -> None:
            with DiskStore(folder / "store") as store, Index(folder / "index") as index:
                engine.store, engine.index = store, index
                resumed = resume(engine, root)
                assert torch.equal(resumed.next_logits(), expected)
                resumed.close()

        resume_s = best_s(resume_cold, repeats)
        peers = _peer_loads(load_peer(loaded), tokens, folder)
        figures = {"prefill, s": prefill_s, "resume (open, read, verify, rotate, one step), s": resume_s}
        figures |= {f"{name}, s": best_s(load, repeats) for name, load in peers.items()}
    claims = [Claim(f"resume of {count} tokens, faster than prefill by", prefill_s / resume_s, 25.0)]
    return report(args, "Resume", claims, figures)


def _peer_loads(peer: Any, tokens: list[int], folder: Path) -> dict[str, Callable[[], object]]:
    """Save one DynamicCache in three ways; give a function that loads each."""
    cache = peer(torch.tensor([tokens]), use_cache=True, logits_to_keep=1).past_key_values
    tensors = {f"{kind}.{i}": getattr(layer, kind).contiguous() for i, layer in enumerate(cache.layers)
               for kind in ("keys", "values")}  # fmt: skip
    torch.save(tensors, folder / "cache.pt")
    save_file(tensors, folder / "cache.safetensors")
    (folder / "cache.pickle").write_bytes(pickle.dumps(cache))

    def load_safetensors() -> None:
        {name: tensor.clone() for name, tensor in load_file(folder / "cache.safetensors").items()}

    return {
        "torch.load": lambda: torch.load(folder / "cache.pt"),
        "safetensors load + clone": load_safetensors,
        "pickled DynamicCache": lambda: pickle.loads((folder / "cache.pickle").read_bytes()),  # noqa: S301 - our own file
    }


if __name__ == "__main__":
    raise SystemExit(main())
