"""A process of the demo: the scores of the next token, after a resume or after computing everything.

`python -m cyberkv.cli.demo_worker HOME ROOT` resumes ROOT from the store of HOME. With `--computed PROMPT_TOKENS` it
reads only the tokens of ROOT and computes them as they were made, without any block: the prompt at once, each further
token by itself. Prints one JSON object. Scores are compared by the hash of their float32 bytes.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import block_cids, load_root, tokens
from ..cybergraph.cid import Cid
from .context import Session
from .output import line

if TYPE_CHECKING:
    from ..runtime.engine import Engine
    from ..runtime.live import Live
    from ..runtime.models.registry import LoadedModel


@click.command()
@click.argument("home", type=click.Path(path_type=Path))
@click.argument("root")
@click.option("--computed", "prompt_tokens", type=int)
def worker(home: Path, root: str, *, prompt_tokens: int | None) -> None:
    """Print the scores of the next token, hashed, and what they cost."""
    session = Session(home, as_json=True, quiet=True, verbose=0, progress=False)
    session.open_to_write()
    cid = Cid.parse(root)
    model = load_root(session.store, cid).model
    loaded = session.registry.load(next(each for each in session.registry.records() if each.cid == model))
    line(_resumed(session, loaded, cid) if prompt_tokens is None else _computed(session, loaded, cid, prompt_tokens))
    session.close()


def _resumed(session: Session, loaded: "LoadedModel", root: Cid) -> dict[str, Any]:
    from ..runtime.checkpoint import resume
    from ..runtime.engine import build_engine

    engine = build_engine(loaded, session.store, session.index)
    started_s = session.clock_s()
    live = resume(engine, root)
    live.next_logits()
    resume_s = session.clock_s() - started_s
    return _described(live) | {"resume_s": round(resume_s, 6), "blocks_same": live.blocks == _blocks(session, root)}


def _computed(session: Session, loaded: "LoadedModel", root: Cid, prompt_tokens: int) -> dict[str, Any]:
    from ..cybergraph.index import Index
    from ..cybergraph.store import MemoryStore
    from ..runtime.engine import build_engine

    sequence = tokens(session.store, load_root(session.store, root))
    with TemporaryDirectory() as folder, Index(Path(folder) / "index") as index:
        engine = build_engine(loaded, MemoryStore(), index)
        live = _compute(engine, sequence, prompt_tokens)
        edited_at = 3 * prompt_tokens // 4
        edited = [
            *sequence[:edited_at],
            (sequence[edited_at] + 1) % loaded.config.vocab_size,
            *sequence[edited_at + 1 :],
        ]
        return _described(live) | {
            "blocks_same": live.blocks == _blocks(session, root),
            "edited_at": edited_at,
            "edited_scores": _scores(_compute(engine, edited, prompt_tokens)),
        }


def _compute(engine: "Engine", sequence: Sequence[int], prompt_tokens: int) -> "Live":
    from ..runtime.live import Live

    live = Live(engine)
    live.append(sequence[:prompt_tokens])
    for token in sequence[prompt_tokens:]:
        live.decode(token)
    return live


def _described(live: "Live") -> dict[str, Any]:
    return {
        "scores": _scores(live),
        "tokens": len(live.tokens),
        "tokens_reused": live.counts.tokens_reused,
        "tokens_computed": live.counts.tokens_computed,
    }


def _scores(live: "Live") -> str:
    from blake3 import blake3

    return f"blake3:{blake3(live.next_logits().float().contiguous().numpy().tobytes()).hexdigest()}"


def _blocks(session: Session, root: Cid) -> list[Cid]:
    return list(block_cids(session.store, load_root(session.store, root)))


if __name__ == "__main__":
    worker()
