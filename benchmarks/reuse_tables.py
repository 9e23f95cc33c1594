"""The tables of docs/reuse.md: each figure beside what the index found, and a control that finds nothing."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from cyberkv.cybergraph.ceilings import compound, edited, fan_out, look_back, percent, resent

from .reuse_replay import BLOCK_TOKENS, WORKLOADS, Asked, Replay, Requests, replay, text

TURNS = (10, 50, 200)
TURN_TOKENS = 64
UNEVEN_TOKENS = 40
EDITS = (0, 5, 25, 50, 100)
AGENTS = (2, 10, 100)
CALLS = (9, 20, 80)
DEPTHS = (0, 25, 50, 75, 100)
LONG_TOKENS = 12_800
NONCE = 50_000
"""Stands in no text."""


def share(asked: Asked) -> Fraction:
    """Give the share of the tokens that was found."""
    return Fraction(asked.found, asked.tokens)


def run(requests: Iterable[Sequence[int]], block_tokens: int = BLOCK_TOKENS) -> Asked:
    """Replay requests in an index of their own."""
    with replay(block_tokens) as fresh:
        return sum((fresh.ask(each) for each in requests), Asked(0, 0))


def spoilt(requests: Iterable[Sequence[int]]) -> Iterator[list[int]]:
    """The control: the same requests, each behind a token of its own."""
    return ([NONCE + number, *each] for number, each in enumerate(requests))


def growing(turns: int, turn_tokens: int) -> Iterator[list[int]]:
    """One conversation, sent whole with every turn."""
    whole = text(7, turns * turn_tokens)
    return (whole[: sent * turn_tokens] for sent in range(1, turns + 1))


def edits(turns: int) -> dict[int, Asked]:
    """Requests with the end of what was sent before replaced, in an index that holds it as it was, by percentage."""
    whole, asked = text(7, turns * TURN_TOKENS), dict.fromkeys(EDITS, Asked(0, 0))
    with replay() as fresh:
        for sent in range(1, turns + 1):
            length, before = sent * TURN_TOKENS, (sent - 1) * TURN_TOKENS
            for part in EDITS:
                kept = before * (100 - part) // 100 if part else length
                asked[part] += fresh.ask([*whole[:kept], *text(9000 + sent, length - kept)], record=False)
            fresh.ask(whole[:length])
    return asked


def edited_once(depth_percent: int) -> Asked:
    """One recorded text asked for again with one token changed, or one more at its end."""
    whole = text(7, LONG_TOKENS)
    at = LONG_TOKENS * depth_percent // 100
    with replay() as fresh:
        fresh.ask(whole)
        return fresh.ask([*whole[:at], NONCE, *whole[at + 1 :]], record=False)


def tool_turn(calls: int) -> Asked:
    """A turn of tool calls, two blocks each, asked for again with one block more; only what was there is counted."""
    whole = text(7, (2 * calls + 2) * BLOCK_TOKENS)
    with replay() as fresh:
        fresh.ask(whole)
        return Asked(len(whole), fresh.ask([*whole, *text(8, BLOCK_TOKENS)], record=False).found)


def together(count: int, *, wait: bool) -> Asked:
    """Agents with one beginning: all ask at once, or the first is waited for."""
    whole = text(7, 512)
    with replay() as fresh:
        asked = [fresh.ask(whole, record=wait) for _ in range(count)]
    return sum(asked, Asked(0, 0))


def stored(requests: Requests) -> Replay:
    """Replay, for the counts of blocks."""
    with replay() as fresh:
        for each in requests:
            fresh.ask(each)
        return fresh


Table = tuple[Sequence[str], list[tuple[object, ...]]]


def resent_table() -> Table:
    rows = []
    for turns in TURNS:
        even, uneven = run(growing(turns, TURN_TOKENS)), run(growing(turns, UNEVEN_TOKENS))
        control = run(spoilt(growing(turns, TURN_TOKENS)))
        rows.append(
            (turns, resent(turns), percent(resent(turns)), percent(share(even)), percent(share(uneven)),
             percent(resent(turns) - share(uneven)), percent(share(control)))
        )  # fmt: skip
    return (
        "turns", "(T-1)/(T+1)", "%", "found, turns of 64", "found, turns of 40", "lost to blocks of 16", "control",
    ), rows  # fmt: skip


def edit_table() -> Table:
    turns = TURNS[-1]
    missed = percent(share(run(spoilt(growing(turns, TURN_TOKENS)))))
    rows = [
        (f"{part} %", percent(edited(resent(turns), Fraction(part, 100))), percent(share(asked)), missed)
        for part, asked in edits(turns).items()
    ]  # fmt: skip
    return ("edited", "(1-e) of the ceiling, %", "found, %", "control"), rows


def depth_table() -> Table:
    rows = []
    for depth in DEPTHS:
        asked = edited_once(depth)
        before = LONG_TOKENS * depth // 100
        rows.append((f"{depth} %", f"{before:,}", f"{asked.found:,}", max(0, asked.found - before)))
    return ("changed at", "tokens before it", "found", "found after it"), rows


def tool_table() -> Table:
    most, rows = resent(TURNS[-1]), []
    for calls in CALLS:
        control = run(spoilt([text(7, (2 * calls + 2) * BLOCK_TOKENS)] * 2))
        found = most * share(tool_turn(calls))
        rows.append((calls, *(percent(most * look_back(calls, marks)) for marks in (1, 4)), percent(found),
                     percent(share(control))))  # fmt: skip
    return ("calls a turn", "looks back 20 from 1 mark, %", "from 4 marks, %", "this index, %", "control"), rows


def fan_out_table() -> Table:
    rows = [
        (count, percent(fan_out(count)), percent(share(together(count, wait=True))),
         percent(share(together(count, wait=False))))
        for count in AGENTS
    ]  # fmt: skip
    return ("agents", "(N-1)/N, %", "the first waited for, %", "all at once, %"), rows


def compound_table() -> Table:
    factors = {
        "200 turns": resent(200),
        "a quarter of the context edited": Fraction(3, 4),
        "20 calls a turn, looking back 20 blocks from 1 mark": look_back(20, 1),
        "a third of the requests in time for the cache": Fraction(1, 3),
    }
    left = compound(*factors.values())
    return ("factor", "", "left, %"), [
        (name, factor, percent(rest)) for (name, factor), rest in zip(factors.items(), left, strict=True)
    ]


def workload_table() -> Table:
    rows = []
    for name, make in WORKLOADS.items():
        requests = make()
        asked, blocks, control = run(requests), stored(requests), run(spoilt(requests))
        rows.append(
            (name, len(requests), f"{asked.tokens:,}", percent(share(asked)), f"{blocks.asked_blocks:,}",
             f"{blocks.stored_blocks:,}", f"{blocks.asked_blocks / blocks.stored_blocks:.1f}", percent(share(control)))
        )  # fmt: skip
    return (
        "workload", "requests", "tokens", "found, %", "blocks, a copy each", "blocks stored", "times fewer", "control",
    ), rows  # fmt: skip


TABLES = {
    "resent": resent_table, "edits": edit_table, "depth": depth_table, "tools": tool_table, "fan-out": fan_out_table,
    "compound": compound_table, "workloads": workload_table,
}  # fmt: skip


def markdown(table: Table) -> str:
    """Write a table as the page has it."""
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
