"""Who comes into the pool, and when."""

from dataclasses import dataclass

from ...cybergraph.errors import OutOfRange, TierFull
from ..attention.panels import FLOOR_ROWS
from ..engine import Engine
from ..live import Live
from ..rows import ARCHIVED
from .job import Job, Running, Waiting
from .parking import unpark
from .request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a scheduler."""

    running: int = 16
    """Conversations in the pool at once."""
    prefill_tokens: int = 256
    """Tokens of prompts in one step, at least one block: by these a step is longer for those that are decoded."""
    requests: int = 1024
    """Requests that wait or run at most."""


def require_possible(engine: Engine, request: Request) -> None:
    """Raise `OutOfRange` or `TierFull` for a request that could never run."""
    count, most = len(request.tokens), engine.config.max_positions
    if count > most:
        raise OutOfRange(f"{count} tokens, the model has {most} positions", hint="shorten the text", tokens=count)
    Live(engine).check_tokens(request.tokens)
    blocks, capacity = count // engine.geometry.block_size + 1, engine.pool.capacity_blocks
    if blocks > capacity:
        raise TierFull(
            f"the prompt takes {blocks} pool rows, there are {capacity}",
            hint="shorten the text or give the pool more blocks",
            capacity_blocks=capacity,
        )


def room_for(engine: Engine, job: Job, running: list[tuple[Job, Running]]) -> bool:
    """Say whether there are pool rows, and memory for a rotated copy, for a waiting request beside what is needed soon.

    That is the rest of the running ones' prompts and the next block of their answers: who comes in is not to be put
    out at once.
    """
    size, pool, memory = engine.geometry.block_size, engine.pool, engine.memory
    ahead = size + FLOOR_ROWS
    growing_bytes = sum(
        max(0, memory.copy_bytes(each.length + ahead) - place.live.sequence.live_bytes) for each, place in running
    )
    if memory.copy_bytes(job.length + ahead) > memory.left_bytes - growing_bytes:
        return False
    promised = sum(max(0, (each.length + ahead) // size - len(place.live.sequence.table)) for each, place in running)
    free = pool.capacity_blocks - pool.used_blocks - promised
    needed = job.length // size + 1
    return needed <= free or needed - _shared_blocks(engine, job, running) <= free


def _shared_blocks(engine: Engine, job: Job, running: list[tuple[Job, Running]]) -> int:
    """Count leading blocks of a waiting request that running ones have in the pool."""
    if isinstance(job.place, Waiting):
        blocks = list(job.place.parked.blocks)
    else:
        blocks = engine.index.lookup_chain(Live(engine).prefixes_of(job.request.tokens), engine.domain.name)
    pairs = [zip(place.live.blocks, place.live.sequence.table, strict=False) for _, place in running]
    held = {cid for each in pairs for cid, row in each if row != ARCHIVED}
    return next((i for i, cid in enumerate(blocks) if cid not in held), len(blocks))


def open_job(engine: Engine, job: Job) -> None:
    """Make or bring back the conversation of a request. Raises what its `open` raises, `TierFull`, `OutOfRange`."""
    if isinstance(job.place, Waiting):
        live, goal = unpark(engine, job.place.parked), job.place.goal
    else:
        live = job.request.open(engine)
        goal = [*live.tokens, *job.request.tokens]
    try:
        unsettled = not live.settled and not engine.domain.scattered
        if live.tail and (len(goal) > len(live.tokens) or unsettled):
            live.give_up_tail()
        if len(goal) > engine.config.max_positions:
            raise OutOfRange(
                f"{len(goal)} tokens, the model has {engine.config.max_positions} positions",
                hint="shorten the text or fork the conversation earlier",
                tokens=len(goal),
            )
        if not goal:
            raise OutOfRange("an empty conversation has no next token", hint="give a prompt")
        job.place = Running(live, goal, [*live.prefixes, *live.prefixes_of(goal[live.boundary :])])
    except BaseException:
        if not isinstance(job.place, Running):
            live.close()
        raise
