"""The plan for a text: one verdict for each of its full blocks, in order.

What was found, what it costs to move and to compute, what may be spent and what must not be used go in; nothing is
looked up here, so equal inputs give equal plans. A block can only be used on top of those before it: the blocks that
are loaded are a beginning of the text, and what is not loaded is computed.

>>> from ..cid import Cid
>>> blocks = [Cid.of(bytes([n]), "raw", "blake3") for n in range(4)]
>>> found = Located([Place(blocks[0], Tier.L0, 0), Place(blocks[1], Tier.L2, 900), Place(blocks[2], Tier.L3, 900)])
>>> rates = Rates(prefill_tokens_s=16.0, load_bytes_s={Tier.L2: 9000.0, Tier.L3: 90.0})
>>> for each in plan(found, blocks=4, block_size=16, rates=rates):
...     print(each.load_s, each.compute_s, each.tier, each.verdict, each.reason or "-")
0.0 1.0 L0 HIT -
0.1 1.0 L2 FAULT in L2, asked for in L0
10.0 1.0 L3 RECOMPUTE loading takes 10 times as long as computing: 10 s against 1 s
None 1.0 None RECOMPUTE no block is recorded for this model and these tokens
>>> [str(each.verdict) for each in plan(found, blocks=3, block_size=16, rates=Rates(), budget_bytes=1000)]
['HIT', 'FAULT', 'ABSTAIN']
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from ..identity import Difference
from .kinds import Approximation, BlockVerdict, Choice, Located, Place, Rates, Refusal, Tier, Verdict

ABSENT = "no block is recorded for this model and these tokens"
_NO_REFUSALS: Mapping[int, Refusal] = {}
_NO_APPROXIMATIONS: Mapping[int, Approximation] = {}


def plan(
    located: Located,
    *,
    blocks: int,
    block_size: int,
    rates: Rates,
    first_block: int = 0,
    asked: Tier = Tier.L0,
    budget_bytes: int | None = None,
    refusals: Mapping[int, Refusal] = _NO_REFUSALS,
    approximations: Mapping[int, Approximation] = _NO_APPROXIMATIONS,
) -> list[BlockVerdict]:
    """Give a verdict for each of `blocks` blocks of `block_size` tokens, from block `first_block` of the text on.

    `located` are the leading ones that were found. What is in tier `asked` or nearer is a HIT, what is lower a FAULT.
    Both are weighed against computing by `rates`: the end of the run whose loads take longer than computing it is
    RECOMPUTE. Faults are paid from `budget_bytes`; the first that it does not cover, and those after it, are ABSTAIN.
    `refusals` and `approximations` are keyed by the block's place in the text.
    """
    usable = next((i for i in range(len(located.places)) if first_block + i in refusals), len(located.places))
    places = located.places[: min(usable, blocks)]
    loaded, choice = _weigh(places, block_size, rates)
    needed_bytes = list(accumulate(each.load_bytes if each.tier > asked else 0 for each in places))
    verdicts: list[BlockVerdict] = []
    missed: int | None = None
    for i in range(blocks):
        at = first_block + i
        reason = ABSENT if missed is None or i == len(places) else f"block {missed} before it has to be computed"
        computed = BlockVerdict(
            at, at * block_size, Verdict.RECOMPUTE, reason,
            compute_tokens=block_size, compute_s=rates.compute_s(block_size),
        )  # fmt: skip
        if i < len(places):
            instead: Choice | Difference | None = choice if i >= loaded else None
            if instead is None and budget_bytes is not None and needed_bytes[i] > budget_bytes:
                instead = Difference("budget_bytes", budget_bytes, needed_bytes[i])
            verdicts.append(_placed(computed, places[i], asked, rates, instead))
        elif at in refusals:
            no = refusals[at]
            verdicts.append(
                replace(computed, verdict=Verdict.REFUSE, reason=no.reason, cid=no.cid, difference=no.difference)
            )
        elif at in approximations:
            verdicts.append(_reconciled(computed, approximations[at], rates))
        elif i == len(places) and located.failure:
            cid, reason, difference = located.failure
            verdicts.append(replace(computed, cid=cid, reason=reason, difference=difference))
        else:
            verdicts.append(computed)
        if missed is None and not verdicts[-1].verdict.loads:
            missed = at
    return verdicts


def _placed(
    computed: BlockVerdict, place: Place, asked: Tier, rates: Rates, instead: Choice | Difference | None
) -> BlockVerdict:
    """Decide about a block that was found; `instead` says why it is not loaded: by choice, or for want of a budget."""
    each = replace(
        computed, cid=place.cid, tier=place.tier,
        load_bytes=place.load_bytes, load_s=rates.load_s(place.tier, place.load_bytes),
    )  # fmt: skip
    if isinstance(instead, Choice):
        return replace(each, reason=instead.reason, difference=Difference("seconds", instead.compute_s, instead.load_s))
    if instead is not None:
        reason = f"the {instead.a:,} bytes that may be loaded are spent before it"
        return replace(each, verdict=Verdict.ABSTAIN, reason=reason, difference=instead)
    if place.tier <= asked:
        return replace(each, verdict=Verdict.HIT, reason="", compute_tokens=0)
    difference = Difference("tier", str(asked), str(place.tier))
    reason = f"in {place.tier}, asked for in {asked}"
    return replace(each, verdict=Verdict.FAULT, reason=reason, difference=difference, compute_tokens=0)


def _reconciled(computed: BlockVerdict, near: Approximation, rates: Rates) -> BlockVerdict:
    return replace(
        computed, verdict=Verdict.RECONCILED, reason=near.reason, cid=near.cid, error=near.error, tier=near.tier,
        difference=near.difference, compute_tokens=0,
        load_bytes=near.load_bytes, load_s=rates.load_s(near.tier, near.load_bytes),
    )  # fmt: skip


def _weigh(places: Sequence[Place], block_size: int, rates: Rates) -> tuple[int, Choice | None]:
    """Say how many leading blocks are loaded so that all take the least time, and weigh those that are not.

    Of equal cuts, the one that loads more. Where a rate is not known, nothing is weighed.
    """
    compute_s = rates.compute_s(block_size)
    loads_s = [rates.load_s(each.tier, each.load_bytes) for each in places]
    if compute_s is None or None in loads_s:
        return len(places), None
    known_s = [each for each in loads_s if each is not None]
    cut, best_gain_s, load_s = len(places), 0.0, 0.0
    for i in range(len(places) - 1, -1, -1):
        load_s += known_s[i]
        gain_s = load_s - rates.least_gain * compute_s * (len(places) - i)
        if gain_s > best_gain_s:
            cut, best_gain_s = i, gain_s
    if cut == len(places):
        return cut, None
    return cut, Choice(sum(known_s[cut:]), compute_s * (len(places) - cut))
