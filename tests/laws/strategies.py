"""Generated nodes: any value each kind allows."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid, Codec
from cyberkv.cybergraph.nodes import Record
from cyberkv.cybergraph.nodes.base import Nested
from cyberkv.cybergraph.nodes.kinds import (
    Blob,
    Bool,
    Bytes,
    CidBytes,
    Kind,
    Link,
    Links,
    Listing,
    Maybe,
    Text,
    TextMap,
    Tokens,
    Uint,
)

MOST_TOKEN = (1 << 32) - 1


def cids(codec: Codec | None = None) -> st.SearchStrategy[Cid]:
    codecs = st.sampled_from(["raw", "dag-cbor"]) if codec is None else st.just(codec)
    return st.builds(Cid.of, st.binary(max_size=4), codecs, st.sampled_from(["sha2-256", "blake3"]))


@cache
def records(cls: type[Record]) -> st.SearchStrategy[Any]:
    """Any valid record of a class, small."""
    return st.builds(cls, *(of(kind) for kind in cls.KINDS.values()))


def of(kind: Kind) -> st.SearchStrategy[Any]:
    match kind:
        case Maybe():
            return st.none() | of(kind.kind)
        case Uint():
            return st.integers(kind.least, kind.most) | st.integers(kind.least, min(kind.most, 300))
        case Bool():
            return st.booleans()
        case Text(choices=choices) if choices:
            return st.sampled_from(choices)
        case Text():
            return st.text(max_size=kind.most_bytes // 4)
        case Bytes():
            return st.binary(min_size=kind.size_bytes, max_size=kind.size_bytes)
        case Blob():
            return st.binary(min_size=kind.least, max_size=min(kind.most_bytes, 100))
        case CidBytes():
            return cids(kind.codec)
        case Link():
            return cids(kind.codec)
        case Tokens():
            return st.lists(st.integers(0, MOST_TOKEN), min_size=kind.least, max_size=min(kind.most, 20)).map(tuple)
        case Links():
            return st.lists(cids(kind.codec), min_size=kind.least, max_size=min(kind.most, 5)).map(tuple)
        case Listing():
            return st.lists(of(kind.kind), min_size=kind.least, max_size=min(kind.most, 5)).map(tuple)
        case TextMap():
            pairs = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4)
            return pairs.map(lambda entries: tuple(sorted(entries.items())))
        case Nested():
            return records(kind.record)
    raise AssertionError(kind)
