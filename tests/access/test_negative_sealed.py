"""What somebody with the key can lie about, and what somebody without it can put in another place: all refused.

The liar here seals pages of its own choice under the right content key and signs for them; nothing of a refused
conversation may be stored.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import ContentKey, OpenedTable, SealedPeer, make_grant
from cyberkv.cybergraph.access.contentkey import derive
from cyberkv.cybergraph.access.leaf import OVERHEAD_BYTES, seal_leaf
from cyberkv.cybergraph.access.page import open_page, seal_page
from cyberkv.cybergraph.access.pagetable import Manifest, Page, PageEntry, SealedLeaf
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    AuthFailed,
    Corrupt,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedNode,
    UnsupportedFormat,
)
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES, MAX_SEALED_PAGES, MAX_SEGMENT_LINKS
from cyberkv.cybergraph.nodes import PinSet, Sealed
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from cyberkv.cybergraph.transfer.fetch_sealed import fetch_sealed
from tests.access.sealed import ISSUER, KEY, LINEAGE, READER, Published, publish
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import MODEL, conversation, other_model

BLOCKS = 20


@pytest.fixture(scope="module")
def honest() -> Published:
    return publish(*conversation(blocks=BLOCKS, tail_tokens=2))


def lied(
    honest: Published,
    change_page: Callable[[Page], Page] = lambda page: page,
    change_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    *,
    more: MemoryStore | None = None,
    alg: int = 1,
) -> tuple[MemoryStore, Cid]:
    """Publish the conversation again with other pages, well signed; with the blocks of `more` beside it."""
    store = MemoryStore()
    for source in (honest.store, *([] if more is None else [more])):
        store.put_many((cid, source.get(cid)) for cid in source.cids())
    commitment = honest.sealed.commitment

    def put(content: bytes) -> Cid:
        data = bytes(seal_page(KEY, commitment, content, alg))
        cid = Cid.of(data, "raw", "sha2-256")
        store.put_many([(cid, data)])
        return cid

    page = put(change_page(honest.page()).encode())
    manifest = put(change_manifest(replace(honest.manifest(), pages=(PageEntry(page, 0),))).encode())
    grant = make_grant(ISSUER, KEY, [READER.public()], lineage=LINEAGE, epoch=1, root=manifest, alg=1)
    pins = store.put_node(PinSet((manifest,)))
    return store, store.put_node(Sealed(1, LINEAGE, 1, commitment, store.put_node(grant), manifest, pins))


def refusal(tmp_path: Path, store: MemoryStore, root: Cid) -> CyberKVError:
    """Fetch what has to be refused, and give why. Nothing that names it as whole may stay behind."""
    theirs = MemoryStore()
    with Index(tmp_path / "index") as index:
        with pytest.raises(CyberKVError) as caught:
            fetch_sealed(theirs, index, root, [StorePeer(store)], lambda *_: KEY)
        assert list(index.heads()) == []
        assert list(index.roots()) == []
    assert root not in set(theirs.cids())
    return caught.value


def test_control_an_honest_copy_arrives(honest: Published, tmp_path: Path) -> None:
    store, root = lied(honest)
    theirs = MemoryStore()
    with Index(tmp_path / "index") as index:
        assert fetch_sealed(theirs, index, root, [StorePeer(store)], lambda *_: KEY).root == honest.table().root


def swapped(leaves: tuple[SealedLeaf, ...], a: int, b: int) -> tuple[SealedLeaf, ...]:
    found = list(leaves)
    found[a], found[b] = found[b], found[a]
    return tuple(found)


@pytest.mark.parametrize("other", [1, 2, 5], ids=["layers", "position", "block and layers"])
def test_two_leaves_in_each_other_s_place(honest: Published, tmp_path: Path, other: int) -> None:
    store, root = lied(honest, lambda page: replace(page, leaves=swapped(page.leaves, 0, other)))
    assert isinstance(refusal(tmp_path, store, root), AuthFailed)


def test_a_leaf_of_the_tail_in_a_block(honest: Published, tmp_path: Path) -> None:
    tail = honest.manifest().tail[0]
    store, root = lied(honest, lambda page: replace(page, leaves=(tail, *page.leaves[1:])))
    assert isinstance(refusal(tmp_path, store, root), AuthFailed)


@pytest.mark.parametrize(("kind", "expected"), [
    ("model", AuthFailed), ("epoch", AuthFailed),
    ("rows", DigestMismatch),  # of the same tokens: it opens, and is not what the block names
])  # fmt: skip
def test_a_leaf_of_another_conversation_or_epoch(
    honest: Published, tmp_path: Path, kind: str, expected: type[CyberKVError]
) -> None:
    key = ContentKey(bytes([9]) * 32) if kind == "epoch" else KEY
    model = other_model(weights="blake3:22") if kind == "model" else MODEL
    seed = "another" if kind == "rows" else "a"
    other = publish(*conversation(blocks=BLOCKS, tail_tokens=2, seed=seed, model=model), key=key, epoch=2)
    leaf = other.page().leaves[0]
    store, root = lied(honest, lambda page: replace(page, leaves=(leaf, *page.leaves[1:])), more=other.store)
    assert isinstance(refusal(tmp_path, store, root), expected)


def test_pages_and_manifests_of_another_epoch_do_not_open(honest: Published) -> None:
    """The commitment, which has the epoch in it, is authenticated with every page: one key is not enough."""
    second = publish(*conversation(blocks=BLOCKS, tail_tokens=2), epoch=2)
    assert open_page(KEY, second.sealed.commitment, second.store.get(second.sealed.manifest))
    for key, commitment in ((KEY, honest.sealed.commitment), (ContentKey(bytes(32)), second.sealed.commitment)):
        with pytest.raises(AuthFailed):
            open_page(key, commitment, second.store.get(second.sealed.manifest))


def test_a_page_under_another_cipher_than_was_signed(honest: Published, tmp_path: Path) -> None:
    store, root = lied(honest, alg=2)
    assert isinstance(refusal(tmp_path, store, root), AuthFailed)
    relabelled = bytearray(honest.store.get(honest.sealed.manifest))
    relabelled[3] = 2
    with pytest.raises(AuthFailed):
        OpenedTable(replace(honest.sealed, alg=2), KEY, bytes(relabelled))
    relabelled[3] = 77
    with pytest.raises(UnsupportedFormat):
        OpenedTable(replace(honest.sealed, alg=77), KEY, bytes(relabelled))


def test_a_leaf_under_another_cipher_than_was_signed(honest: Published) -> None:
    table = honest.table()
    segment = table.conversation.segments[0]
    table.learn(segment, [honest.store.get(page) for page in table.unread_pages(segment)])
    place = table.place(next(leaf for part in table.parts(segment) for leaf in part.leaves.values()))
    assert place is not None

    def room(size: int) -> memoryview:
        return memoryview(bytearray(size))

    plain = table.open(place, honest.store.get(place.sealed), room)
    other, digest = seal_leaf(KEY.leaf_key(), place.context, plain, 2)
    assert digest == place.digest
    with pytest.raises(AuthFailed) as caught:
        table.open(place._replace(sealed=Cid.of(other, "raw", "sha2-256")), other, room)
    assert "cipher" in str(caught.value)


MODEL_CHANGES = {"dtype": {"kv_dtype": "f16"}, "weights": {"weights": "blake3:" + "0" * 64}, "heads": {"num_heads": 8}}


@pytest.mark.parametrize("name", MODEL_CHANGES)
def test_the_same_leaves_under_another_model(honest: Published, tmp_path: Path, name: str) -> None:
    """Refused before anything could be built of them: the context of each leaf names the model."""
    table = honest.table()
    model = replace(table.model, **MODEL_CHANGES[name])
    root = replace(table.conversation, model=model.cid())
    store, cid = lied(
        honest, change_manifest=lambda manifest: replace(manifest, model=model.encode(), root=root.encode())
    )
    assert isinstance(refusal(tmp_path, store, cid), (AuthFailed, MalformedNode))


PAGE_LIES: dict[str, Callable[[Page], Page]] = {
    "fewer leaves": lambda page: replace(page, leaves=page.leaves[:-1]),
    "a leaf twice": lambda page: replace(page, leaves=(*page.leaves[:-1], page.leaves[0])),
    "blocks in another order": lambda page: replace(page, blocks=page.blocks[::-1]),
    "a block twice": lambda page: replace(page, blocks=(*page.blocks, page.blocks[0])),
    "no segment": lambda page: replace(page, segment=None),
    "something else as segment": lambda page: replace(page, segment=b"\xa0"),
    "something else as block": lambda page: replace(page, blocks=(b"\xa0",) * BLOCKS),
    "another beginning": lambda page: replace(page, start=1),
    "a beginning beyond all positions": lambda page: replace(page, start=(1 << 63) - 1),
    "another past": lambda page: replace(page, prefix=bytes(32)),
    "another digest": lambda page: replace(
        page, leaves=(replace(page.leaves[0], digest=bytes(32)), *page.leaves[1:])
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", PAGE_LIES)
def test_pages_that_lie(honest: Published, tmp_path: Path, lie: str) -> None:
    store, root = lied(honest, PAGE_LIES[lie])
    error = refusal(tmp_path, store, root)
    assert isinstance(error, Corrupt) or error.kind == "block-not-found", error


MANIFEST_LIES: dict[str, Callable[[Manifest], Manifest]] = {
    "no pages": lambda manifest: replace(manifest, pages=()),
    "a page of a segment that is not there": lambda manifest: replace(
        manifest, pages=(replace(manifest.pages[0], segment=7),)
    ),
    "something else as root": lambda manifest: replace(manifest, root=b"\xa0"),
    "a sealed root inside": lambda manifest: replace(
        manifest, root=Sealed(1, LINEAGE, 1, bytes(32), manifest_cid("dag-cbor"), manifest_cid("raw"),
                              manifest_cid("dag-cbor")).encode()
    ),
    "a model that is not the root's": lambda manifest: replace(manifest, root=manifest.model, model=manifest.root),
    "a tail of one leaf twice": lambda manifest: replace(manifest, tail=manifest.tail[:1] * 2),
    "a tail of the other leaf twice": lambda manifest: replace(manifest, tail=manifest.tail[1:] * 2),
    "no tail": lambda manifest: replace(manifest, tail=()),
    "a tail after another past": lambda manifest: replace(manifest, tail_prefix=bytes(32)),
    "leaves of one byte": lambda manifest: replace(manifest, leaf_bytes=1),
    "leaves of all bytes there are": lambda manifest: replace(manifest, leaf_bytes=(1 << 63) - 1),
}  # fmt: skip


def manifest_cid(codec: str) -> Cid:
    return Cid.of(b"nothing", "raw" if codec == "raw" else "dag-cbor", "sha2-256")


@pytest.mark.parametrize("lie", MANIFEST_LIES)
def test_first_pages_that_lie(honest: Published, tmp_path: Path, lie: str) -> None:
    store, root = lied(honest, change_manifest=MANIFEST_LIES[lie])
    error = refusal(tmp_path, store, root)
    assert isinstance(error, Corrupt) or error.kind == "block-not-found", error


def test_a_segment_of_more_pages_than_it_has_blocks(honest: Published) -> None:
    entry = honest.manifest().pages[0]

    def table(count: int) -> OpenedTable:
        manifest = replace(honest.manifest(), pages=(entry,) * count)
        return OpenedTable(honest.sealed, KEY, seal_page(KEY, honest.sealed.commitment, manifest.encode(), 1))

    assert len(table(MAX_SEGMENT_LINKS).unread_pages(honest.table().conversation.segments[0])) == MAX_SEGMENT_LINKS
    for count in (MAX_SEGMENT_LINKS + 1, MAX_SEALED_PAGES):
        with pytest.raises(MalformedNode):
            table(count)


def test_pages_of_more_bytes_than_a_segment_has(
    honest: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cyberkv.cybergraph.access import peer

    table = honest.table()
    size_bytes = len(honest.store.get(table.unread_pages(table.conversation.segments[0])[0]))
    for most_bytes in (size_bytes, size_bytes - 1):
        monkeypatch.setattr(peer, "MAX_SEGMENT_PAGES_BYTES", most_bytes)
        with Index(tmp_path / str(most_bytes)) as index:
            sealed = SealedPeer(StorePeer(honest.store), honest.table())
            if most_bytes == size_bytes:
                fetch(MemoryStore(), index, table.root, [sealed])
            else:
                with pytest.raises(LimitExceeded):
                    fetch(MemoryStore(), index, table.root, [sealed])


def test_a_leaf_too_large_to_be_sealed_is_refused() -> None:
    most_bytes = MAX_LEAF_BYTES - OVERHEAD_BYTES
    assert len(seal_leaf(bytes(32), bytes(32), bytes(most_bytes), 1)[0]) == MAX_LEAF_BYTES
    with pytest.raises(LimitExceeded):
        seal_leaf(bytes(32), bytes(32), bytes(most_bytes + 1), 1)


def test_no_two_plaintexts_or_places_share_a_key() -> None:
    """The nonce never changes, so the keys have to: over 100,000 leaves of one conversation, and over its pages."""
    leaf_key = KEY.leaf_key()
    digests = [number.to_bytes(32, "big") for number in range(50_000)]
    context = bytes(32)
    keys = {derive(leaf_key, "blk", context, digest) for digest in digests}
    keys |= {derive(leaf_key, "blk", digest, context) for digest in digests[1:]}
    assert len(keys) == 99_999
    salts = {KEY.page_salt(digest) for digest in digests[:5000]}
    assert len(salts) == 5000
    assert derive(leaf_key, "blk", context, digests[1]) == derive(leaf_key, "blk", context, digests[1])


def test_nothing_that_seals_draws_a_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of randomness that repeats itself does no harm to sealing: it is not asked."""
    import os
    import secrets

    monkeypatch.setattr(os, "urandom", lambda _: pytest.fail("asked"))
    monkeypatch.setattr(secrets, "token_bytes", lambda _: pytest.fail("asked"))
    sealed = [bytes(seal_page(KEY, bytes(32), bytes([number]), 1)) for number in range(2)]
    assert sealed[0][4:20] != sealed[1][4:20]


def test_nothing_reads_compressed_bytes() -> None:
    """No decompression, no bomb. An answer that is compressed is refused (tests/wire/test_http_peer.py)."""
    import cyberkv.cybergraph

    text = "".join(path.read_text() for path in Path(cyberkv.cybergraph.__path__[0]).rglob("*.py"))
    assert not any(
        f"import {name}" in text for name in ("zlib", "gzip", "bz2", "lzma", "zstandard", "pickle", "brotli")
    )
    assert "import hashlib" in text


def test_a_sealed_conversation_larger_than_allowed_is_refused_before_any_leaf_moves(
    honest: Published, tmp_path: Path
) -> None:
    theirs, peer = MemoryStore(), StorePeer(honest.store)
    whole_bytes = honest.table().conversation.bytes
    with Index(tmp_path / "index") as index:
        with pytest.raises(CyberKVError) as caught:
            fetch_sealed(theirs, index, honest.root, [peer], lambda *_: KEY, most_bytes=whole_bytes // 2)
        assert caught.value.exit_code in (4, 5)
        assert not [cid for cid in theirs.cids() if cid.codec == "raw"]
        fetch_sealed(theirs, index, honest.root, [peer], lambda *_: KEY, most_bytes=2 * whole_bytes)
    assert honest.table().root in set(theirs.cids())
