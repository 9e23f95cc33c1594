"""`demo evict`: an eviction that leaves nothing behind, on a small random model, in a second."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from .context import Session, pass_session
from .output import answer, say

if TYPE_CHECKING:
    from ..runtime.engine import Engine
    from ..runtime.live import Live

_TOKENS: Final = 240
_START, _END = 80, 144
"""The span that is taken out."""
_CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": True,
}  # fmt: skip
_DOES_NOT_HOLD: Final = 1


@click.command("evict")
@click.pass_context
@pass_session
def demo_evict(session: Session, ctx: click.Context) -> None:
    """Show that an exact eviction leaves nothing of what was said.

    A random model of four layers reads 240 tokens; 64 in the middle are taken out. Beside it a run that never saw them,
    and controls that still do. Needs no network, no key and no model, and touches no home. Exits with 1 if a line does
    not hold.
    """
    with TemporaryDirectory(prefix="cyberkv-demo-") as folder:
        data = _measure(Path(folder))
    answer(session, data, lambda: _show(data))
    if not data["ok"]:
        ctx.exit(_DOES_NOT_HOLD)


def _measure(folder: Path) -> dict[str, Any]:
    """Evict in all ways and compare with a run that never saw the span."""
    from ..cybergraph.index import Index
    from ..cybergraph.store.memory import MemoryStore
    from ..runtime.edits.evict import evict
    from ..runtime.edits.receipt import Cut
    from ..runtime.engine import build_engine
    from ..runtime.models.registry import Registry

    _write_model(folder / "model")
    registry = Registry(folder / "models")
    loaded = registry.load(registry.add(folder / "model", name="random"))
    tokens = [(13 * i * i + 11 * i + 5) % _CONFIG["vocab_size"] for i in range(_TOKENS)]
    without = tokens[:_START] + tokens[_END:]
    with Index(folder / "never") as apart, Index(folder / "index") as index:
        # The run that never saw the span has a store and an index of its own: nothing can come from the other.
        never = _read(build_engine(loaded, MemoryStore(), apart), without)
        engine = build_engine(loaded, MemoryStore(), index)
        poisoned, evicted, fast = (_read(engine, tokens) for _ in range(3))
        receipt = evict(evicted, [Cut(_START, _END)], "exact")
        quick = evict(fast, [Cut(_START, _END)], "fast")
        differences = {
            "exact": _difference(evicted, never), "poison": _difference(poisoned, never),
            "fast": _difference(fast, never),
        }  # fmt: skip
        blocks_same, poison_same = evicted.blocks == never.blocks, poisoned.blocks == never.blocks
    return {
        "ok": differences["exact"] == 0 and differences["poison"] > 0 and differences["fast"] > 0
        and blocks_same and not poison_same and receipt.exact and not quick.exact,
        "tokens": _TOKENS, "span": [_START, _END], "differences": differences, "blocks_same": blocks_same,
        "poison_blocks_same": poison_same, "blocks": len(never.blocks), "receipt": receipt.as_json(),
    }  # fmt: skip


def _read(engine: "Engine", tokens: list[int]) -> "Live":
    from ..runtime.live import Live

    live = Live(engine)
    live.append(tokens)
    return live


def _difference(one: "Live", two: "Live") -> float:
    """Give the largest difference of a score of the next token."""
    return float((one.next_logits() - two.next_logits()).abs().max())


def _write_model(folder: Path) -> None:
    """Draw weights: always the same ones, and such that no layer is without effect."""
    import torch
    from safetensors.torch import save_file

    from ..runtime.models.config import DecoderConfig
    from ..runtime.models.weights import expected_tensors

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    drawn = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=drawn) * (1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        + (1.0 if len(shape) == 1 else 0.0)
        for name, shape in expected_tensors(DecoderConfig.from_hf(_CONFIG)).items()
    }
    save_file(weights, folder / "model.safetensors")


def _show(data: dict[str, Any]) -> None:
    differences, receipt = data["differences"], data["receipt"]
    say(f"a random model reads {data['tokens']} tokens; {_START}:{_END} are taken out")
    say("largest difference of the next token's scores to a run that never saw them:")
    say(f"  evict --mode exact  {differences['exact']:.3e}")
    say(f"  still there         {differences['poison']:.3e}")
    say(f"  evict --mode fast   {differences['fast']:.3e}")
    blocks = f"all {data['blocks']} blocks are{'' if data['blocks_same'] else ' not'} named as in that run"
    say(f"exact computed {receipt['recomputed_tokens']} tokens again; {blocks}")
    say("everything holds" if data["ok"] else "this does not hold", bold=True, fg="green" if data["ok"] else "red")
