"""Blocks of another home: sound to the last hash, with chosen numbers among their keys and values."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import Store

NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def forge(
    source: Store, target: Store, blocks: Sequence[Cid], numbers: Mapping[tuple[int, int], tuple[int, float]]
) -> list[Cid]:
    """Put a chain into `target` that is `blocks` of `source` but for some numbers, and give its names.

    `numbers` maps block and layer group to a place, counted in numbers of four bytes, and what stands there.
    """
    made: list[Cid] = []
    for at, cid in enumerate(blocks):
        node = Block.decode(source.get(cid))
        kv = list(node.kv)
        for group, leaf in enumerate(node.kv):
            data = bytearray(source.get(leaf))
            if (at, group) in numbers:
                place, number = numbers[at, group]
                data[4 * place : 4 * place + 4] = struct.pack("<f", number)
            kv[group] = Cid.of(data, "raw", leaf.hash_name)
            target.put(kv[group], bytes(data))
        made.append(target.put_node(replace(node, prev=made[-1] if made else None, kv=tuple(kv))))
    return made
