"""How fast models were prefilled here and how fast sources gave, kept beside the store for the next command's choices.

The file is about this machine and not about content: losing it, or taking it elsewhere, costs at most one choice that
was not the fastest.
"""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..cybergraph.cid import Cid
from ..cybergraph.private import open_regular, write_private

FILE_NAME: Final = "rates.json"
MOST_BYTES: Final = 1 << 20
MOST_RATES: Final = 1000
"""Kept of each kind, the newest."""

PREFILL: Final = "prefill_tokens_s"
"""By the CID of the model."""
FETCH: Final = "fetch_bytes_s"
"""By source."""
FAILED_BYTES_S: Final = 1.0
"""Stands for a source that failed when it was asked last."""


def read_rates(home: Path, kind: str = PREFILL) -> dict[str, float]:
    """Give the rates of one kind, the newest first. A damaged file is as good as none."""
    try:
        rates = {str(key): float(rate) for key, rate in _content(home)[kind].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}
    return {key: rate for key, rate in rates.items() if math.isfinite(rate) and rate > 0}


def read_rate(home: Path, model: Cid) -> float | None:
    """Give the tokens a second of the last long prefill of a model; None if there was none."""
    return read_rates(home).get(str(model))


def keep_rate(home: Path, model: Cid, prefill_tokens_s: float) -> None:
    """Note the speed of a prefill. That it cannot be written is no error."""
    keep_rates(home, PREFILL, {str(model): prefill_tokens_s})


def keep_rates(home: Path, kind: str, rates: dict[str, float]) -> None:
    """Note rates of one kind in place of those of the same keys. That they cannot be written is no error."""
    older = {key: rate for key, rate in read_rates(home, kind).items() if key not in rates}
    newest = dict(list({**rates, **older}.items())[:MOST_RATES])
    others = {each: read_rates(home, each) for each in (PREFILL, FETCH)}
    with suppress(OSError):
        write_private(home / FILE_NAME, [json.dumps(others | {kind: newest}).encode()], sync=False)


def _content(home: Path) -> Any:
    try:
        with open_regular(home / FILE_NAME) as file:
            return json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
