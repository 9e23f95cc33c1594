"""Naming things: block nodes to bytes and back, strictly, and CIDs in their three forms.

Each pair encodes a block of 16 tokens and three leaves and decodes it with every check. The peers do the same
for a plain dictionary: `dag-cbor` in Python, as strict about the encoding; `cbrrr` in C. Neither checks fields
or bounds.
"""

from collections.abc import Callable, Sequence

import cbrrr
import dag_cbor
from multiformats import CID as PeerCid

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import decode
from cyberkv.cybergraph.nodes import Block, NextBlock, Segment

from .common import Claim, options, paired_best_s, report

TOKENS = (128000, 9906, 11, 1268, 527, 499, 30, 358, 2846, 7060, 13, 3639, 649, 358, 1520, 449)
MODEL, PREV = (Cid.of(name, "dag-cbor", "sha2-256") for name in (b"model", b"previous block"))
LEAVES = tuple(Cid.of(bytes((group,)), "raw", "blake3") for group in range(3))
BLOCK = Block(model=MODEL, prev=PREV, tokens=TOKENS, kv=LEAVES)
SEGMENT = Segment(
    model=MODEL,
    start=0,
    links=tuple(NextBlock(from_=PREV, to=MODEL, position_start=16 * index) for index in range(256)),
)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    rounds = 3 if args.quick else 40
    data, segment_data = BLOCK.encode(), SEGMENT.encode()
    with_cids, with_peer_cids = decode(data), dag_cbor.decode(data)

    def microseconds(
        ours: Callable[[], object], peer: Callable[[], object], count: int
    ) -> tuple[float, float]:
        each = max(count // 10, 2) if args.quick else count
        ours_s, peer_s = paired_best_s(lambda: _repeat(ours, each), lambda: _repeat(peer, each), rounds)
        return ours_s / each * 1e6, peer_s / each * 1e6

    def pair() -> Block:
        return Block.decode(BLOCK.encode())

    def cbrrr_pair() -> object:
        return cbrrr.decode_dag_cbor(cbrrr.encode_dag_cbor(with_cids, cid_type=Cid), cid_ctor=Cid)

    pair_us, cbrrr_us = microseconds(pair, cbrrr_pair, 1000)
    again_us, dag_cbor_us = microseconds(pair, lambda: dag_cbor.decode(dag_cbor.encode(with_peer_cids)), 30)
    encode_us, decode_us = microseconds(BLOCK.encode, lambda: Block.decode(data), 1000)
    segment_us, segment_peer_us = microseconds(
        lambda: Segment.decode(segment_data), lambda: cbrrr.decode_dag_cbor(segment_data, cid_ctor=Cid), 20
    )
    raw, text = bytes(MODEL), str(MODEL)
    from_us, peer_from_us = microseconds(lambda: Cid(raw), lambda: PeerCid.decode(raw), 1000)
    to_us, _ = microseconds(lambda: bytes(MODEL), lambda: bytes(with_peer_cids["model"]), 1000)
    text_us, peer_text_us = microseconds(lambda: str(MODEL), lambda: str(with_peer_cids["model"]), 1000)
    parse_us, peer_parse_us = microseconds(lambda: Cid.parse(text), lambda: PeerCid.decode(text), 1000)

    best_us = min(pair_us, again_us)
    claims = [
        Claim("block encode + strict decode, pairs a second", 1e6 / best_us, 40_000, unit="/s"),
        Claim("faster than dag-cbor by", dag_cbor_us / again_us, 10),
        Claim("CID from bytes", from_us, 1, unit="us", at_most=True),
        Claim("CID to bytes", to_us, 1, unit="us", at_most=True),
        Claim("CID to text", text_us, 10, unit="us", at_most=True),
        Claim("CID from text", parse_us, 10, unit="us", at_most=True),
    ]
    figures = {
        "pair, us": best_us,
        "pair by dag-cbor, us": dag_cbor_us,
        "pair by cbrrr, us": cbrrr_us,
        "pair against cbrrr, times as long": pair_us / cbrrr_us,
        "block encode, us": encode_us,
        "block strict decode, us": decode_us,
        "segment of 256 links strict decode, us": segment_us,
        "segment of 256 links by cbrrr, us": segment_peer_us,
        "CID from bytes by multiformats, us": peer_from_us,
        "CID to text by multiformats, us": peer_text_us,
        "CID from text by multiformats, us": peer_parse_us,
    }
    return report(args, "Nodes and CIDs", claims, figures)


def _repeat(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


if __name__ == "__main__":
    raise SystemExit(main())
