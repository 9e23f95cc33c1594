"""Whether an edit is possible, asked before it is tried: `evict` asks the same question and gives the same answer."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ...cybergraph.errors import CyberKVError, OutOfRange, Refused, UnsafeNumerics, UnsupportedModel
from ...cybergraph.nodes import Model
from .receipt import Cut, Mode

if TYPE_CHECKING:
    from ..live import Live  # loads torch, which the other questions here can do without

_POSITIONAL: Final = re.compile(r"(full|window:[1-9][0-9]*)(-nope)?")
"""Layers that keep one row for each token. Any other state, such as a recurrent one, has no rows to take out."""
_SHOWN_LAYERS: Final = 8


def can_evict(live: "Live", cuts: Sequence[Cut], mode: Mode) -> bool:
    """Say whether `evict` would do this. Whether there is room for it (`TierFull`) shows only then."""
    return refusal(live, cuts, mode) is None


def refusal(live: "Live", cuts: Sequence[Cut], mode: Mode) -> CyberKVError | None:
    """Give the error that `evict` would raise, or None: `OutOfRange`, `Refused`, `UnsupportedModel`, `UnsafeNumerics`.

    Nothing is changed.
    """
    if wrong := refusal_of_cuts(cuts, len(live.tokens), mode) or refusal_of_model(live.engine.model):
        return wrong
    try:
        if mode != "rollback":
            live.engine.domain.require_sound()
    except UnsafeNumerics as error:
        return error
    return None


def refusal_of_cuts(cuts: Sequence[Cut], length: int, mode: Mode) -> CyberKVError | None:
    """Say what is wrong with these cuts in a conversation of `length` tokens, or None."""
    ends_before_start = any(earlier.end > later.start for earlier, later in pairwise(cuts))
    if not cuts or ends_before_start or any(not 0 <= cut.start < cut.end <= length for cut in cuts):
        named = ", ".join(map(str, cuts)) or "nothing"
        return OutOfRange(
            f"cannot evict {named} of {length} tokens",
            hint=f"START:END within 0:{length}, in order; END is not included",
            spans=[list(cut) for cut in cuts], tokens=length,
        )  # fmt: skip
    if mode == "rollback" and (len(cuts) > 1 or cuts[0].end != length):
        return Refused(
            f"{cuts[0]} is not the end of {length} tokens, so there is something after it that has read it",
            hint="mode exact computes again what came after", start=cuts[0].start, end=cuts[0].end, tokens=length,
        )  # fmt: skip
    if mode == "branch":
        return Refused(
            f"{cuts[0]} was not opened as a branch, so what came after has read it",
            hint="mode exact computes again what came after", start=cuts[0].start, end=cuts[0].end,
        )  # fmt: skip
    return None


def refusal_of_model(model: Model) -> UnsupportedModel | None:
    """Refuse a model with layers whose state is not one row for each token, and name them."""
    other = {at: kind for at, kind in enumerate(model.attention) if not _POSITIONAL.fullmatch(kind)}
    if not other:
        return None
    shown = ", ".join(f"layer {at} ({kind})" for at, kind in list(other.items())[:_SHOWN_LAYERS])
    return UnsupportedModel(
        f"tokens cannot be taken out of {shown}", hint="fork before the span and go on from there",
        field="attention", got=sorted(set(other.values())), layers=list(other),
    )  # fmt: skip
