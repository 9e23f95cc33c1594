"""How soon the command answers: help, and looking at a real conversation. The peer is what it would cost to load torch.

`show` and `walk` run on 2,048 tokens of SmolLM2, recorded before the clock starts.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .common import CACHE, Claim, best_s, options, report, scratch
from .real_model import load_smollm2, prompt

HEAVY = ("torch", "numpy", "rich", "lmdb")


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    count, repeats = (256, 2) if args.quick else (2048, 10)
    with scratch(args.folder) as home:
        _record(home, count)
        lines = {"--help": ["--help"], "show": ["show", "long"], "walk": ["walk", "long"]}
        times_s = {word: best_s(lambda line=line: _cyberkv(home, *line), repeats) for word, line in lines.items()}
        torch_s = best_s(lambda: _python("import torch"), min(repeats, 3))
        blocks = len(_cyberkv(home, "walk", "long", "--json").splitlines())
    if blocks != count // 16:
        raise SystemExit(f"walk gave {blocks} blocks of {count // 16}")
    loaded = json.loads(_python(_LOADED))
    bars = {"--help": 0.3, "show": 0.5, "walk": 0.5}
    claims = [Claim(f"cyberkv {word}", times_s[word], bar, unit="s", at_most=True) for word, bar in bars.items()]
    claims.append(Claim("heavy modules loaded by --help", float(len(loaded)), 0, unit="", at_most=True))
    figures = {"import torch, s": torch_s, "python that does nothing, s": best_s(lambda: _python("pass"), repeats)}
    figures |= {f"import torch takes as long as cyberkv {word}, times": torch_s / s for word, s in times_s.items()}
    return report(args, "Start", claims, figures)


_LOADED = f"""
import json, sys
from contextlib import redirect_stdout
from io import StringIO
from cyberkv.cli.main import cli
try:
    with redirect_stdout(StringIO()):
        cli.main(["--help"])
except SystemExit:
    print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""


def _record(home: Path, count: int) -> None:
    """Make a home that knows the model and holds a conversation of `count` tokens under the name `long`."""
    from cyberkv.cybergraph.index import Index
    from cyberkv.cybergraph.store.disk import DiskStore
    from cyberkv.runtime.checkpoint import checkpoint
    from cyberkv.runtime.engine import build_engine
    from cyberkv.runtime.live import Live

    loaded = load_smollm2()
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        live = Live(build_engine(loaded, store, index))
        live.append(prompt(count, loaded.config.vocab_size))
        index.set_head("long", checkpoint(live, title="long", created=""), "")
    (home / "models").symlink_to(CACHE.resolve())


def _cyberkv(home: Path, *line: str) -> str:
    return _run(sys.executable, "-m", "cyberkv.cli", "--home", str(home), *line)


def _python(code: str) -> str:
    return _run(sys.executable, "-c", code)


def _run(*line: str) -> str:
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
