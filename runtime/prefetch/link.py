"""What reading ahead is worth over a link, in virtual time: a simulator, for the plan as it is used.

One block after the other comes over a link with a latency and a rate. Heads read one block each in turns and compute
for a while on it; a head whose block is not here stalls. Nothing here waits or measures.

>>> from ...cybergraph.cid import Cid
>>> chain = tuple(Cid.of(bytes([i]), "dag-cbor", "sha2-256") for i in range(10))
>>> link = Link(latency_s=0.02, bytes_s=25e6, block_bytes=500_000)
>>> link.block_s
0.04
>>> bursts = lambda at: 0.0 if at % 5 < 4 else 0.2
>>> [round(simulate([chain], link, compute_s=bursts, ahead_blocks=n, most_blocks=9).stall_s, 2) for n in (0, 2, 8)]
[0.4, 0.32, 0.2]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...cybergraph.cid import Cid
from .plan import Head, plan


@dataclass(frozen=True, slots=True)
class Link:
    """How blocks come."""

    latency_s: float
    bytes_s: float
    block_bytes: int

    @property
    def block_s(self) -> float:
        """Seconds for one block that is asked for alone."""
        return self.latency_s + self.block_bytes / self.bytes_s


@dataclass(frozen=True, slots=True)
class Run:
    """How a run of heads over a link went."""

    stall_s: float
    """All heads together."""
    total_s: float
    moved_blocks: int
    unused_blocks: int
    """Brought, and never read."""
    most_held_blocks: int
    """Most blocks that were held without having been read."""
    served: tuple[int, ...]
    """Blocks that were brought for each head."""


def simulate(
    chains: Sequence[Sequence[Cid]],
    link: Link,
    *,
    compute_s: float | Callable[[int], float],
    ahead_blocks: int,
    most_blocks: int,
    stops: Sequence[int] | None = None,
) -> Run:
    """Read chains side by side, each with its own processor: `compute_s` on each block, or by its index.

    A head stops after `stops` blocks of its chain (None: at its end). What it then leaves unread was brought in vain.
    """
    ends = [len(chain) for chain in chains] if stops is None else list(stops)
    heads = [Head(tuple(chain)) for chain in chains]
    ready_s = [0.0] * len(chains)
    """When each head wants its next block."""
    here_s: dict[Cid, float] = {}
    """When each block came."""
    read: set[Cid] = set()
    now_s = stall_s = 0.0
    most_held = 0
    while True:
        for number, end in enumerate(ends):
            head = heads[number]
            while head.at < end and (cid := head.blocks[head.at]) in here_s:
                start_s = max(ready_s[number], here_s[cid])
                if start_s > now_s:
                    break
                stall_s += start_s - ready_s[number]
                ready_s[number] = start_s + (compute_s(head.at) if callable(compute_s) else compute_s)
                read.add(cid)
                head = replace(head, at=head.at + 1)
            heads[number] = head
        held = len(here_s.keys() - read)
        most_held = max(most_held, held)
        live = [number for number, end in enumerate(ends) if heads[number].at < end]
        if not live:
            break
        waiting = [number for number in live if ready_s[number] <= now_s]
        # What a head waits for is asked for anyway; the budget is for what nobody waits for yet.
        asking, wants = waiting, plan([heads[n] for n in waiting], most_blocks=1, in_use=here_s, ahead_blocks=1)
        if not wants and held < most_blocks:
            asking, ahead = live, plan(
                [heads[n] for n in live], most_blocks=most_blocks, in_use=read, ahead_blocks=ahead_blocks
            )  # fmt: skip
            wants = [want for want in ahead if want.cid not in here_s]
        if not wants:
            now_s = min(ready_s[number] for number in live if ready_s[number] > now_s)
            continue
        now_s += link.block_s
        here_s[wants[0].cid] = now_s
        number = asking[wants[0].head]
        heads[number] = replace(heads[number], served=heads[number].served + 1)
    served = tuple(head.served for head in heads)
    return Run(stall_s, max(ready_s, default=0.0), len(here_s), held, most_held, served)
