"""The quantised lane against the exact one: bytes, speed of prefill, decode and restore, and what it does to scores.

The same weights, text and machine; only the scheme differs.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.runtime.canonical import canonical_step, single_step
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.geometry import Geometry, KvScheme, layers_per_leaf
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel
from cyberkv.runtime.pool import Pool

from .common import Claim, best_in_turns_s, options, report
from .real_model import fresh_engine, load_smollm2

SCHEMES: tuple[KvScheme, ...] = ("none", "int8/row/f32")
TEXT = (
    "The lighthouse keeper wrote down every ship that passed the bay. In the first week of March he counted forty-one, "
    "and each of them carried a lamp of its own. When the fog came in, he lit the second lamp, as his father had done, "
    "and waited for an answer from the sea. It was the custom then to ring a bell for those who could not see. "
)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    context, steps, repeats, scored = (256, 8, 1, 32) if args.quick else (1024, 32, 5, 256)
    exact = load_smollm2()
    if exact.text is None:
        raise RuntimeError("the real model has a tokenizer")
    text = exact.text.encode(TEXT)
    tokens = (text * (-(-(context + steps) // len(text))))[: context + steps]
    with ExitStack() as stack:
        engines = [stack.enter_context(fresh_engine(_with(exact, scheme), args.folder)) for scheme in SCHEMES]
        prefill_s = best_in_turns_s(*(lambda e=e: _prefill(e, tokens[:context]) for e in engines), repeats=repeats)
        roots = [_record(engine, tokens[:context]) for engine in engines]
        restore_s = best_in_turns_s(
            *(lambda e=e, r=r: _restore(e, r) for e, r in zip(engines, roots, strict=True)), repeats=4 * repeats
        )
        lives = [resume(engine, root) for engine, root in zip(engines, roots, strict=True)]
        decode_s = best_in_turns_s(*(lambda x=x: _decode(x, tokens[context:]) for x in lives), repeats=repeats)
        scores = [_scores(engine, tokens[:scored]) for engine in engines]
        sizes = [engine.geometry.bytes_per_token for engine in engines]
    right, ours = (each.double().log_softmax(-1) for each in scores)
    kl = (right.exp() * (right - ours)).sum(-1)
    off = (scores[0] - scores[1]).abs()
    claims = [
        Claim("bytes of K and V, int8 vs f32", sizes[1] / sizes[0], 0.27, at_most=True),
        Claim(f"prefill of {context} tokens, speed vs f32", prefill_s[0] / prefill_s[1], 0.9),
        Claim(f"decode at {context}, speed vs f32", decode_s[0] / decode_s[1], 0.85),
        Claim(f"restore of {context} tokens, speed vs f32", restore_s[0] / restore_s[1], 1.0),
        Claim(f"KL of the next token over {scored} positions, mean", float(kl.mean()), 0.01, "nat", at_most=True),
    ]
    figures = {
        "KL, worst position, nat": float(kl.max()),
        "scores, largest difference": float(off.max()),
        "scores, mean difference": float(off.mean()),
        "same likeliest token, share of positions": float((right.argmax(-1) == ours.argmax(-1)).double().mean()),
        **{f"prefill {scheme}, tok/s": context / s for scheme, s in zip(SCHEMES, prefill_s, strict=True)},
        **{f"decode {scheme}, ms/token": 1e3 * s / steps for scheme, s in zip(SCHEMES, decode_s, strict=True)},
        **{f"restore {scheme}, ms": 1e3 * s for scheme, s in zip(SCHEMES, restore_s, strict=True)},
    }
    return report(args, "Quantised K and V", claims, figures)


def _with(loaded: LoadedModel, scheme: KvScheme) -> LoadedModel:
    g = loaded.geometry
    per_leaf = layers_per_leaf(
        g.num_layers, g.num_kv_heads, g.head_dim, block_size=g.block_size, dtype=g.dtype, scheme=scheme
    )
    identity = replace(loaded.identity, kv_quant_scheme=scheme, layers_per_leaf=per_leaf)
    return replace(loaded, identity=identity, cid=identity.cid(), geometry=Geometry.from_model(identity))


def _prefill(engine: Engine, tokens: Sequence[int]) -> None:
    sequence = engine.new_sequence()
    sequence.extend_table(len(tokens))
    engine.decoder.logits(canonical_step(engine.decoder, sequence, tokens, 0)[-1])
    sequence.release()


def _record(engine: Engine, tokens: Sequence[int]) -> Cid:
    live = Live(engine)
    live.append(tokens)
    root = checkpoint(live, title="", created="")
    live.close()
    return root


def _restore(engine: Engine, root: Cid) -> None:
    """Into an empty pool, so that every leaf is read from the store and checked."""
    engine.pool = Pool(engine.geometry, engine.pool.capacity_blocks)
    resume(engine, root).close()


def _decode(live: Live, tokens: Sequence[int]) -> None:
    """Single steps at the end of the text, over again: a ring or copy takes a position that stood before."""
    sequence, start = live.sequence, len(live.tokens)
    sequence.extend_table(start + len(tokens))
    for i, token in enumerate(tokens):
        live.engine.decoder.logits(single_step(live.engine.decoder, sequence, [token], start + i)[-1])


def _scores(engine: Engine, tokens: Sequence[int]) -> torch.Tensor:
    """Scores after each token. Shape: [tokens, vocab_size]."""
    sequence = engine.new_sequence()
    sequence.extend_table(len(tokens))
    hidden = canonical_step(engine.decoder, sequence, tokens, 0)
    sequence.release()
    return torch.stack([engine.decoder.logits(row) for row in hidden])


if __name__ == "__main__":
    raise SystemExit(main())
