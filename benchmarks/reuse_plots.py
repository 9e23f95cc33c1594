"""The plots of docs/reuse.md, the same bytes in every run."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from cyberkv.cybergraph.ceilings import edited, fan_out, resent, resent_in_blocks

from .reuse_tables import AGENTS, EDITS, TURNS, edits, share, together

STYLE = {"svg.hashsalt": "cyberkv", "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}


def draw(folder: Path) -> list[Path]:
    """Write every plot as SVG into a folder."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(STYLE):
        for name, plot in {"reuse-turns": _turns, "reuse-edits": _edits, "reuse-agents": _agents}.items():
            figure, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
            plot(axes)
            axes.set_ylim(0, 102)
            axes.set_ylabel("tokens found, %")
            axes.legend()
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None, "Creator": None})
            plt.close(figure)
    return paths


def _turns(axes: Any) -> None:
    turns = range(1, TURNS[-1] + 1)
    axes.plot(turns, [100 * float(resent(each)) for each in turns], label="(T-1)/(T+1)")
    for block_tokens in (16, 64):
        found = [100 * float(resent_in_blocks(each, 40, block_tokens)) for each in turns]
        axes.plot(turns, found, "--", label=f"in blocks of {block_tokens}, turns of 40")
    axes.plot(turns, [0] * len(turns), ":", label="control: another first token")
    axes.set_xscale("log")
    axes.set_xlabel("turns")


def _edits(axes: Any) -> None:
    turns = TURNS[1]
    axes.plot(EDITS, [100 * float(edited(resent(turns), Fraction(each, 100))) for each in EDITS],
              label="(1-e) of the ceiling")  # fmt: skip
    axes.plot(EDITS, [100 * float(share(each)) for each in edits(turns).values()], "o", label="found in the index")
    axes.set_xlabel(f"end of the context edited, % ({turns} turns)")


def _agents(axes: Any) -> None:
    counts = range(1, AGENTS[-1] + 1)
    axes.plot(counts, [100 * float(fan_out(each)) for each in counts], label="(N-1)/N")
    axes.plot(
        AGENTS,
        [100 * float(share(together(each, wait=True))) for each in AGENTS],
        "o",
        label="found, the first waited for",
    )
    axes.plot(
        AGENTS, [100 * float(share(together(each, wait=False))) for each in AGENTS], "x", label="control: all at once"
    )
    axes.set_xscale("log")
    axes.set_xlabel("agents with one beginning")
