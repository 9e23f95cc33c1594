"""Prefetch: what will be read next is on its way before it is asked for.

`Prefetcher` walks ahead of heads and warms host memory with whole blocks. `Arrival` brings a conversation from peers in
the order in which layers need it, while it is computed upon.
"""

from .arrival import Arrival
from .arriving import append_arriving
from .plan import Head, Want, plan
from .prefetcher import Prefetcher, Tally, Walk

__all__ = ["Arrival", "Head", "Prefetcher", "Tally", "Walk", "Want", "append_arriving", "plan"]
