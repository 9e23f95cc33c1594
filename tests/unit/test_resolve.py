"""Paths: how one comes apart, and where it leads."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import encode
from cyberkv.cybergraph.gateway import Published
from cyberkv.cybergraph.gateway.resolve import MOST_HOPS, Place, resolve, split_path
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore


@pytest.mark.parametrize(
    ("raw_path", "segments", "slash"),
    [
        (b"/ipfs/cid", [], False), (b"/ipfs/cid/", [], True), (b"/ipfs/cid//", [], True),
        (b"/ipfs/cid/a/b", ["a", "b"], False), (b"/ipfs/cid/a//b/", ["a", "b"], True),
        (b"/ipfs/cid/a%2Fb", ["a", "b"], False), (b"/ipfs/cid/a%252Fb", ["a%2Fb"], False),
        (b"/ipfs/cid/a/../b", ["b"], False), (b"/ipfs/cid/a/%2e%2E/b", ["b"], False), (b"/ipfs/cid/./a/.", ["a"], True),
        (b"/ipfs/cid/a/..", [], True), (b"/ipfs/cid/%C5%82", ["\u0142"], False), (b"/ipfs/cid/a+b", ["a+b"], False),
    ],
)  # fmt: skip
def test_paths_come_apart(raw_path: bytes, segments: list[str], slash: bool) -> None:
    assert split_path(raw_path) == ("cid", tuple(segments), slash)


@pytest.mark.parametrize(
    "raw_path",
    [b"/ipfs/cid/..", b"/ipfs/cid/a/../../b", b"/ipfs/cid/%2e%2e/x", b"/ipfs/cid/%ff", b"/ipfs/" + b"a/" * 600],
)
def test_paths_that_lead_nowhere(raw_path: bytes) -> None:
    with pytest.raises(HTTPException) as caught:
        split_path(raw_path)
    assert caught.value.status_code == 400


@given(st.lists(st.text(min_size=1).filter(lambda name: "/" not in name and name not in (".", ".."))), st.booleans())
def test_a_path_in_its_one_form_is_the_same_path(segments: list[str], slash: bool) -> None:
    root = Cid.of(b"", "raw", "blake3")
    place = Place(tuple(segments), slash, (root,))
    url_path = place.url_path.encode()
    assert re.fullmatch(rb"[A-Za-z0-9._~/%-]+", url_path)
    if len(url_path) < 1000:
        assert split_path(b"/ipfs/" + url_path) == (str(root), place.segments, slash)


@given(st.binary(max_size=60))
def test_any_path_comes_apart_or_is_refused(raw_path: bytes) -> None:
    segments: tuple[str, ...] = ()
    with suppress(HTTPException):
        _, segments, _ = split_path(raw_path)
    assert not {"", ".", ".."} & {*segments}


def linked(index: Index, nodes: int, pad_bytes: int = 0) -> tuple[Published, list[Cid]]:
    """Publish a chain of nodes, each with a link `on` to the next; give its CIDs from the beginning."""
    store = MemoryStore()
    chain = [Cid.of(b"", "raw", "blake3")]
    store.put(chain[0], b"")
    for _ in range(nodes):
        node = encode({"on": chain[-1], "pad": bytes(pad_bytes)})
        chain.append(Cid.of(node, "dag-cbor", "sha2-256"))
        store.put(chain[-1], node)
    index.publish(chain[-1], chain)
    return Published(store, index), chain[::-1]


@pytest.mark.parametrize(("most", "pad_bytes"), [(MOST_HOPS, 0), (8, (1 << 20) - 200)])
def test_a_path_goes_so_far_and_no_further(index: Index, most: int, pad_bytes: int) -> None:
    content, chain = linked(index, most + 5, pad_bytes)
    place = resolve(content, chain[0], ("on",) * most, slash=False)
    assert place.cids == (*chain[: most + 1],)
    with pytest.raises(HTTPException) as caught:
        resolve(content, chain[0], ("on",) * (most + 1), slash=False)
    assert caught.value.status_code == 400
