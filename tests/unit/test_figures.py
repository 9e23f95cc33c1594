"""Figures on the pages are those of the code: each is written by it here, and looked for in its sentence."""

import re
from pathlib import Path

import pytest

from cyberkv.cybergraph.keeping.scrub import RATE_BYTES_S
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES
from cyberkv.cybergraph.store.batches import BATCH_BLOCKS, BATCH_BYTES
from cyberkv.cybergraph.store.reading import DIRECT_BYTES
from cyberkv.runtime.geometry import TARGET_LEAF_BYTES
from cyberkv.runtime.models.config_layers import LayerKind
from cyberkv.runtime.pace import PROBE_BYTES
from cyberkv.runtime.rings.window import LEAST_ROWS, SLACK_ROWS, live_bytes
from cyberkv.runtime.splice.passages import PASSAGE_TOKENS, STRIDE_TOKENS
from cyberkv.runtime.splice.reconcile import FIRST_TOKENS
from cyberkv.runtime.steps.drafting import PromptLookup
from cyberkv.runtime.tiers.moves import MOST_MOVES
from cyberkv.runtime.tiers.residency import CACHED_BYTES
from cyberkv.runtime.tiers.shelf import HOT_STEPS

TOP = Path(__file__).parents[2]
MIB = 1 << 20
SLIDING, FULL = [LayerKind(window=2048)] * 39, [LayerKind(rotated=False)] * 13
ROW_BYTES = 2 * 128 * 2

FIGURES = {
    "docs/memory.md": [
        f"after the first {PROBE_BYTES // MIB} MiB of a run",
        f"{CACHED_BYTES // MIB} MiB of unused ones",
        f"what the last {HOT_STEPS} decode steps used",
        f"the last {MOST_MOVES:,} of them",
        f"A document has at most {MAX_LEAF_BYTES // MIB} MiB",
        f"A passage has up to {PASSAGE_TOKENS} tokens and overlaps its neighbours by {PASSAGE_TOKENS - STRIDE_TOKENS}",
        f"first the first {FIRST_TOKENS} tokens of each document",
        f"up to {PromptLookup().most} guesses",
        f"The window and {SLACK_ROWS} rows more",
        f"at least {LEAST_ROWS}",
        f"{live_bytes(SLIDING, 131_072, ROW_BYTES) // MIB} MiB of windows at any length",
        f"{live_bytes(FULL, 1, ROW_BYTES) // 1024} KiB a token of the others",
    ],
    "docs/design.md": [
        f"A batch is at most {BATCH_BYTES // MIB} MiB or {BATCH_BLOCKS:,} blocks",
        f"Only a call for {DIRECT_BYTES // MIB} MiB or more",
        f"at most {RATE_BYTES_S // MIB} MiB a second",
        f"the first {PROBE_BYTES // MIB} MiB of known blocks",
    ],
    "README.md": [f"little endian, at most {TARGET_LEAF_BYTES // 1024} KiB"],
}


def missing(page: str, figures: list[str]) -> list[str]:
    text = re.sub(r"\s+", " ", page)
    return [each for each in figures if each not in text]


@pytest.mark.parametrize("page", FIGURES)
def test_the_page_has_the_figures_of_the_code(page: str) -> None:
    assert missing((TOP / page).read_text(), FIGURES[page]) == []


@pytest.mark.parametrize("page", FIGURES)
def test_control_a_page_that_drifted_is_noticed(page: str) -> None:
    drifted = re.sub(r"[0-9]+", lambda found: str(int(found[0]) + 1), (TOP / page).read_text())
    assert missing(drifted, FIGURES[page]) == FIGURES[page]
