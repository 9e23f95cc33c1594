"""One order of checks for all that comes from others: of two neighbours that fail, the earlier one speaks.

Every pair is broken on every path, beside a control that breaks only the later of the two.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import make_grant
from cyberkv.cybergraph.access.aead import CIPHER_AT
from cyberkv.cybergraph.access.leaf import seal_leaf
from cyberkv.cybergraph.access.opened import OpenedTable, Place
from cyberkv.cybergraph.access.padding import pad_leaf
from cyberkv.cybergraph.access.page import seal_page
from cyberkv.cybergraph.access.pagetable import PageEntry
from cyberkv.cybergraph.car import car_header, car_section, read_car
from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.checks import PATHS, Check
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import encode, parse
from cyberkv.cybergraph.errors import (
    AuthFailed,
    BlockNotFound,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedCar,
    MalformedCbor,
    MalformedNode,
    PeerMisbehaved,
    TruncatedCar,
)
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.integrity import check_integrity
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES, MAX_NODE_BYTES
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, NextBlock, PinSet, Segment
from cyberkv.cybergraph.peers import CarFilePeer, HttpPeer
from cyberkv.cybergraph.staging import heap_room
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from cyberkv.cybergraph.transfer.fetch_sealed import fetch_sealed
from cyberkv.cybergraph.varint import write_varint
from tests.access.sealed import ISSUER, KEY, LINEAGE, READER, Published, publish
from tests.wire.conftest import CALM
from tests.wire.liar import Exchange, lying
from tests.wire.synthetic import BLOCK_SIZE, contents, conversation, put_leaves

Served = dict[Cid, bytes]
"""What is served, whether it is what its CID says or not."""
JUNK = bytes.fromhex("a1617a")
"""A map of one entry that ends before its value."""


def under_one_block(origin: MemoryStore, root: Cid, block: Cid, leaves: tuple[Cid, ...] = ()) -> tuple[Served, Cid]:
    """Give a conversation of this block alone."""
    node = load_root(origin, root)
    segment = origin.put_node(Segment(node.model, 0, (NextBlock(None, block, 0),)))
    false = replace(node, segments=(segment,), length=BLOCK_SIZE, tail=EMPTY_TAIL)
    cids = [origin.put_node(false), node.model, segment, block]
    return {cid: origin.get(cid) for cid in (*cids, *leaves)}, cids[0]


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def put(origin: MemoryStore, data: bytes) -> Cid:
    cid = Cid.of(data, "dag-cbor", "sha2-256")
    origin.put_many([(cid, data)])
    return cid


def too_large(*, both: bool) -> tuple[Served, Cid]:
    origin, root = conversation(blocks=1, tail_tokens=0)
    served = contents(origin, root)
    block = next(block_cids(origin, load_root(origin, root)))
    served[block] = bytes(MAX_NODE_BYTES + 1) if both else flipped(served[block])
    return served, root


def of_another_size(*, both: bool) -> tuple[Served, Cid]:
    origin, root = conversation(blocks=1)
    first = Block.decode(origin.get(next(block_cids(origin, load_root(origin, root)))))
    wrong = put_leaves(origin, "z", BLOCK_SIZE + 1)
    served, root = under_one_block(origin, root, origin.put_node(replace(first, kv=wrong)), wrong)
    if both:
        served |= {cid: flipped(data) for cid, data in served.items() if cid.codec == "raw"}
    return served, root


def of_no_form(*, both: bool) -> tuple[Served, Cid]:
    origin, root = conversation(blocks=1)
    junk = put(origin, JUNK)
    served, root = under_one_block(origin, root, junk)
    if both:
        served[junk] = JUNK[:-1]
    return served, root


def out_of_place(*, both: bool) -> tuple[Served, Cid]:
    origin, root = conversation(blocks=1)
    data = origin.get(next(block_cids(origin, load_root(origin, root))))
    item = parse(data)
    assert isinstance(item, dict)
    item["prev"] = bytes(root)
    if both:
        item["zz"] = 1
    return under_one_block(origin, root, put(origin, encode(item)), Block.decode(data).kv)


@dataclass(frozen=True)
class Pair:
    """Two neighbours, with something that fails at the later or at both."""

    earlier: Check
    later: Check
    build: Callable[..., tuple[Served, Cid]]
    wins: tuple[type[CyberKVError], str]
    alone: tuple[type[CyberKVError], str]
    """What the later one says by itself."""


PLAIN = (
    Pair(Check.LIMITS, Check.DIGEST, too_large, (CyberKVError, ""), (DigestMismatch, "hash")),
    Pair(Check.DIGEST, Check.BINDING, of_another_size, (DigestMismatch, "hash"), (MalformedNode, "size_bytes is")),
    Pair(Check.DIGEST, Check.DECODE, of_no_form, (DigestMismatch, "hash"), (MalformedCbor, "at byte")),
    Pair(Check.DECODE, Check.PLACE, out_of_place, (MalformedNode, "unknown field 'zz'"), (MalformedNode, "'prev'")),
)
TOO_LARGE = {
    "fetch": (PeerMisbehaved, "sends over"),
    "fetch, as a stream": (CyberKVError, "sends over|limit"),
    "import": (TruncatedCar, "was not received"),  # what is too large is passed over
    "audit": (LimitExceeded, "limit"),
}
"""How a block that is too large is refused."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("path", TOO_LARGE)
@pytest.mark.parametrize("pair", PLAIN, ids=lambda pair: f"{pair.earlier.name} {pair.later.name}")
@pytest.mark.parametrize("both", [True, False], ids=["both", "the later alone"])
def test_the_earlier_of_two_speaks(
    stack: ExitStack, index: Index, tmp_path: Path, path: str, pair: Pair, *, both: bool
) -> None:
    assert {pair.earlier, pair.later} <= {*PATHS[path]}
    assert pair.earlier < pair.later
    served, root = pair.build(both=both)
    kind, words = pair.wins if both else pair.alone
    if both and pair.earlier == Check.LIMITS:
        kind, words = TOO_LARGE[path]
    error = refused(stack, index, tmp_path, path, served, root)
    assert isinstance(error, (str, kind)), error
    assert re.search(words, error if isinstance(error, str) else error.message), error


def refused(stack: ExitStack, index: Index, tmp_path: Path, path: str, served: Served, root: Cid) -> CyberKVError | str:
    """Let a conversation come by one path, and give why it is refused. Nothing of it may be named afterwards."""
    if path == "audit":
        store = MemoryStore()
        store._blocks.update(served)
        [reason, *_] = check_integrity(store, index, root).failed.values()
        return reason
    peer = car_peer(tmp_path, served, root) if path == "import" else http_peer(stack, served, path)
    store = MemoryStore()
    with peer, pytest.raises(CyberKVError) as caught:
        fetch(store, index, root, [peer])
    assert not store.has(root)
    assert list(index.entries()) == []
    return caught.value


def http_peer(stack: ExitStack, served: Served, path: str) -> HttpPeer:
    def behave(talk: Exchange) -> None:
        if not talk.is_car:
            talk.honest()
        elif path == "fetch":
            talk.head("400 Bad Request", content_length=0)
        else:
            talk.answer(car_header([talk.cid]) + b"".join(car_section(cid, data) for cid, data in served.items()))

    return HttpPeer(stack.enter_context(lying(served, behave)).url, patience=CALM)


def car_peer(folder: Path, served: Served, root: Cid) -> CarFilePeer:
    path = folder / "false.car"
    path.write_bytes(car_header([root]) + b"".join(car_section(cid, data) for cid, data in served.items()))
    return CarFilePeer(path)


@pytest.mark.parametrize("both", [True, False], ids=["both", "the later alone"])
def test_the_type_of_an_answer_comes_before_its_size(stack: ExitStack, *, both: bool) -> None:
    origin, root = conversation(blocks=1)
    leaf = next(cid for cid in contents(origin, root) if cid.codec == "raw")

    def behave(talk: Exchange) -> None:
        talk.answer(bytes(MAX_LEAF_BYTES + 1), "text/html" if both else None)

    url = stack.enter_context(lying(contents(origin, root), behave)).url
    with HttpPeer(url, patience=CALM) as peer, pytest.raises(PeerMisbehaved, match="instead of" if both else "sends"):
        list(peer.get_many([leaf]))


@pytest.mark.parametrize("both", [True, False], ids=["both", "the later alone"])
def test_the_frame_of_a_section_comes_before_its_size(tmp_path: Path, *, both: bool) -> None:
    _, root = conversation(blocks=1)
    name = b"\x03" + root[1:] if both else root  # no CID has this version
    car = car_header([root]) + write_varint(len(name) + MAX_NODE_BYTES + 1) + name + bytes(MAX_NODE_BYTES + 1)
    with pytest.raises(MalformedCar if both else LimitExceeded):
        list(read_car(BytesIO(car)))
    (tmp_path / "false.car").write_bytes(car)
    with CarFilePeer(tmp_path / "false.car") as peer, pytest.raises(MalformedCar if both else BlockNotFound):
        list(peer.get_many([root]))


@pytest.fixture(scope="module")
def sealed() -> Published:
    return publish(*conversation(blocks=3))


@pytest.mark.parametrize("path", ["fetch", "import"])
@pytest.mark.parametrize("both", [True, False], ids=["both", "the later alone"])
def test_a_sealed_leaf_is_hashed_before_anything_is_said_of_its_content(
    stack: ExitStack, index: Index, tmp_path: Path, sealed: Published, path: str, *, both: bool
) -> None:
    """Wrong cipher, no ciphertext and not its hash; as a control, a publisher who sealed it so."""
    served: Served = {cid: sealed.store.get(cid) for cid in sealed.store.cids()}
    leaf = sealed.page().leaves[0].cid
    data = bytearray(served[leaf])
    data[CIPHER_AT] = 2
    root = sealed.root
    if both:
        served[leaf] = bytes(data)
    else:
        changed = Cid.of(bytes(data), "raw", "sha2-256")
        served[changed] = bytes(data)
        root = resealed(sealed, served, changed)
    peer = car_peer(tmp_path, served, root) if path == "import" else http_peer(stack, served, path)
    with peer, pytest.raises(CyberKVError) as caught:
        fetch_sealed(MemoryStore(), index, root, [peer], lambda *_: KEY)
    assert isinstance(caught.value, DigestMismatch if both else AuthFailed), caught.value


def resealed(sealed: Published, served: Served, leaf: Cid) -> Cid:
    """Publish it again with another sealed leaf in the place of the first, under a grant of the same issuer."""

    def keep(data: bytes, codec: str = "raw") -> Cid:
        cid = Cid.of(data, codec, "sha2-256")  # type: ignore[arg-type]
        served[cid] = data
        return cid

    def page_of(content: bytes) -> Cid:
        return keep(bytes(seal_page(KEY, sealed.sealed.commitment, content, 1)))

    page = sealed.page()
    page = replace(page, leaves=(replace(page.leaves[0], cid=leaf), *page.leaves[1:]))
    manifest = page_of(replace(sealed.manifest(), pages=(PageEntry(page_of(page.encode()), 0),)).encode())
    grant = make_grant(ISSUER, KEY, [READER.public()], lineage=LINEAGE, epoch=1, root=manifest, alg=1)
    pins = keep(PinSet((manifest,)).encode(), "dag-cbor")
    changed = replace(sealed.sealed, grant=keep(grant.encode(), "dag-cbor"), manifest=manifest, pinset=pins)
    return keep(changed.encode(), "dag-cbor")


@pytest.fixture
def place(sealed: Published) -> tuple[OpenedTable, Cid, Place]:
    table = sealed.table()
    segment = table.conversation.segments[0]
    table.learn(segment, [sealed.store.get(page) for page in table.unread_pages(segment)])
    leaf = next(leaf for part in table.parts(segment) for leaf in part.leaves.values())
    found = table.place(leaf)
    assert found is not None
    return table, leaf, found


def opens(table: OpenedTable, place: Place, data: bytes) -> memoryview:
    """Open what a publisher has sealed so: its hash is right."""
    return table.open(place._replace(sealed=Cid.of(data, "raw", "sha2-256")), data, heap_room)


def test_of_what_is_sealed_the_earlier_of_two_speaks(sealed: Published, place: tuple[OpenedTable, Cid, Place]) -> None:
    table, leaf, where = place
    data = sealed.store.get(where.sealed)
    plain = bytes(opens(table, where, data))
    key, room_bytes = KEY.leaf_key(), len(data) - 20

    def sealed_as(content: bytes, digest: bytes | None = None) -> tuple[Place, bytes]:
        made, found = seal_leaf(key, where.context, content, 1, digest)
        return where._replace(digest=digest or found, name_is_digest=False), bytes(made)

    broken = flipped(data[::-1])[::-1]
    other_cipher = bytearray(broken)
    other_cipher[CIPHER_AT] = 2
    with pytest.raises(AuthFailed, match="another cipher"):  # BINDING before DECRYPTION
        opens(table, where, bytes(other_cipher))
    with pytest.raises(AuthFailed) as caught:  # the control
        opens(table, where, broken)
    assert "cipher" not in caught.value.message
    tail = next(leaf for leaf in table.conversation.tail.kv or ())
    tail_place = table.place(tail)
    assert tail_place is not None
    tail_plain = bytes(opens(table, tail_place, sealed.store.get(tail_place.sealed)))
    dirty = bytearray(pad_leaf(tail_plain, room_bytes))
    dirty[-1] = 1
    made, digest = seal_leaf(key, tail_place.context, bytes(dirty), 1)
    false = tail_place._replace(digest=digest, name_is_digest=False)
    with pytest.raises(AuthFailed, match="padding"):  # the control of the next, and DECODE before PLACE
        opens(table, false, bytes(made))
    with pytest.raises(AuthFailed) as caught:  # DECRYPTION before DECODE
        opens(table, false, flipped(bytes(made)[::-1])[::-1])
    assert "padding" not in caught.value.message
    wrong, made_wrong = sealed_as(flipped(plain))
    opened = opens(table, wrong, made_wrong)  # PLACE: it opens, and is not what the block names
    with pytest.raises(DigestMismatch):
        leaf.verify(opened)


def test_a_page_that_opens_is_then_decoded(sealed: Published) -> None:
    commitment = sealed.sealed.commitment
    junk = bytes(seal_page(KEY, commitment, JUNK, 1))
    with pytest.raises(MalformedCbor):  # the control
        OpenedTable(sealed.sealed, KEY, junk)
    with pytest.raises(AuthFailed):
        OpenedTable(sealed.sealed, KEY, flipped(junk[::-1])[::-1])


def test_every_step_of_every_path_is_there() -> None:
    for steps in PATHS.values():
        assert list(steps) == sorted(steps)
        for name in steps.values():
            module, *rest = _split(name)
            found = import_module(f"cyberkv.cybergraph.{module}")
            for part in rest:
                found = getattr(found, part)
            assert callable(found), name
    assert {check for steps in PATHS.values() for check in steps} == {*Check}


def _split(name: str) -> list[str]:
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)
    return [".".join(parts[:at]), *parts[at:]]
