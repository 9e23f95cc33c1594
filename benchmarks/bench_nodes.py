"""Naming things: block nodes to bytes and back, strictly, and CIDs in their three forms.

Each pair encodes a block of 16 tokens and three leaves and decodes it with every check. The peers do the same
for a plain dictionary: `dag-cbor` in Python, `cbrrr` in C. Neither checks fields or bounds.
"""

from collections.abc import Callable, Sequence
from functools import partial

import cbrrr
import dag_cbor
from multiformats import CID as PeerCid  # noqa: N811

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import decode
from cyberkv.cybergraph.nodes import Block, NextBlock, Segment

from .common import Claim, best_s, options, report

TOKENS = (128000, 9906, 11, 1268, 527, 499, 30, 358, 2846, 7060, 13, 3639, 649, 358, 1520, 449)
MODEL, PREV = (Cid.of(name, "dag-cbor", "sha2-256") for name in (b"model", b"previous block"))
LEAVES = tuple(Cid.of(bytes((group,)), "raw", "blake3") for group in range(3))
BLOCK = Block(model=MODEL, prev=PREV, tokens=TOKENS, kv=LEAVES)
SEGMENT = Segment(
    model=MODEL,
    start=0,
    links=tuple(NextBlock(from_=PREV, to=MODEL, position_start=16 * index) for index in range(256)),
)


Work = Callable[[], object]


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    data, segment_data = BLOCK.encode(), SEGMENT.encode()
    plain, peer_plain = decode(data), dag_cbor.decode(data)
    raw, text, peer_cid = bytes(MODEL), str(MODEL), peer_plain["model"]

    def cbrrr_pair() -> object:
        return cbrrr.decode_dag_cbor(cbrrr.encode_dag_cbor(plain, cid_type=Cid), cid_ctor=Cid)

    calls = 100  # about two milliseconds: short enough to fall between two disturbances
    works: dict[str, tuple[Work, int]] = {
        "pair": (lambda: Block.decode(BLOCK.encode()), calls),
        "pair by cbrrr": (cbrrr_pair, calls),
        "pair by dag-cbor": (lambda: dag_cbor.decode(dag_cbor.encode(peer_plain)), 1),
        "block encode": (BLOCK.encode, calls),
        "block strict decode": (lambda: Block.decode(data), calls),
        "segment of 256 links strict decode": (lambda: Segment.decode(segment_data), 1),
        "CID from bytes": (lambda: Cid(raw), calls),
        "CID to bytes": (lambda: bytes(MODEL), calls),
        "CID to text": (lambda: str(MODEL), calls),
        "CID from text": (lambda: Cid.parse(text), calls),
        "CID from bytes by multiformats": (lambda: PeerCid.decode(raw), 2),
        "CID to text by multiformats": (lambda: str(peer_cid), 2),
        "CID from text by multiformats": (lambda: PeerCid.decode(text), 2),
    }
    us = _best_us(works, rounds=3 if args.quick else 400)
    claims = [
        Claim("block encode + strict decode, pairs a second", 1e6 / us["pair"], 40_000, unit="/s"),
        Claim("faster than dag-cbor by", us["pair by dag-cbor"] / us["pair"], 10),
        Claim("CID from bytes", us["CID from bytes"], 1, unit="us", at_most=True),
        Claim("CID to bytes", us["CID to bytes"], 1, unit="us", at_most=True),
        Claim("CID to text", us["CID to text"], 10, unit="us", at_most=True),
        Claim("CID from text", us["CID from text"], 10, unit="us", at_most=True),
    ]
    figures = {f"{name}, us": value for name, value in us.items()}
    figures["pair against cbrrr, times as long"] = us["pair"] / us["pair by cbrrr"]
    return report(args, "Nodes and CIDs", claims, figures)


def _best_us(works: dict[str, tuple[Work, int]], rounds: int) -> dict[str, float]:
    """Shortest time of one call of each, in microseconds.

    Each is measured once a round, so that no busy spell of the machine covers all measurements of one of them.
    """
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, (work, calls) in works.items():
            best[name] = min(best[name], best_s(partial(_repeat, work, calls), 1) / calls * 1e6)
    return best


def _repeat(work: Work, count: int) -> None:
    for _ in range(count):
        work()


if __name__ == "__main__":
    raise SystemExit(main())
