"""Speculative decoding of one conversation: check several guessed tokens in one step, keep those that are right.

The certain token and the draft go through one step as rows of one conversation. Each row's scores choose the token
after it, by the same rule and the same draw as without a draft; the first choice that differs from the draft ends the
check. What is kept is thus what would have been computed one token after the other, bit for bit. The rest was never
written to the pool, hashed or counted.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..sampling import Sampling
from .checking import Check, check, draft
from .drafting import Drafter
from .step import Span

if TYPE_CHECKING:
    from ..live import Live


def speculate(
    live: "Live", max_tokens: int, sampling: Sampling, stop: frozenset[int], drafter: Drafter
) -> Iterator[int]:
    """Generate with drafts: see `Live.generate`. A token is recorded when it is given, not when it is accepted."""
    engine, sequence, size = live.engine, live.sequence, live.engine.geometry.block_size
    live.settle_tail()
    seats = engine.processor.seats(engine.config, engine.pool, 1)
    try:
        token, left = sampling.choose(live.next_logits(), len(live.tokens)), max_tokens
        while left > 0 and token not in stop and len(live.tokens) < engine.config.max_positions:
            tokens, position = draft(live, token, drafter, left - 1), len(live.tokens)
            live.counts.tokens_drafted += len(tokens) - 1
            span = Span(sequence, position, tokens, seated=True)
            try:
                sequence.extend_table(position + len(tokens))
                seats.take(sequence, position)
                step = engine.processor.step(engine.decoder, seats, [span], engine.domain.floor_rows)
                [hidden] = step.run()
                [choices] = check(engine, [Check(sampling, position, tokens, hidden)])
                for i in range(len(choices)):
                    if tokens[i] in stop:
                        return
                    step.settle(span, range(i, i + 1))
                    live.record([tokens[i]], hidden[i])
                    live.counts.tokens_accepted += 1 if i else 0
                    yield tokens[i]
            finally:
                sequence.truncate_table(-(-len(live.tokens) // size))
            left -= len(choices)
            token = choices[-1]
    finally:
        seats.leave(sequence, len(live.tokens))
