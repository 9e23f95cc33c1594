"""Everything that reads bytes of strangers, each with inputs that are right. A reader may refuse by type, or accept;
what it accepts has to be what it would write.
"""

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple

from cyberkv.cybergraph import dagcbor, dagjson
from cyberkv.cybergraph.access import OpenedTable, PublicIdentity, ShareLink, check_grant, make_grant, open_grant
from cyberkv.cybergraph.access.grant import Kem
from cyberkv.cybergraph.access.keyfile import KeyFile, key_bytes, opened
from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.access.page import open_page, seal_page
from cyberkv.cybergraph.access.pagetable import Manifest, Page
from cyberkv.cybergraph.access.passphrase import Lock
from cyberkv.cybergraph.access.proof import SCHEMES, Challenge, Terms, Verifier, answer, make_ring
from cyberkv.cybergraph.access.receipt import check_receipt, make_receipt
from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import AuthFailed, DigestMismatch
from cyberkv.cybergraph.foreign import AnyValue, any_cid, parse_cid
from cyberkv.cybergraph.ipld import ValueCodec, links_of, read_dag_cbor, write_value
from cyberkv.cybergraph.nodes import Grant, Receipt, decode_node, links
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer.fetch_sealed import find_grant
from fixtures.golden import NODES
from fixtures.make import FOLDER
from tests.access.sealed import ISSUER, KEY, LINEAGE, OTHER, READER, Published, publish
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import conversation

NOW_S = 1_800_000_000
AUDIENCE = "https://gateway.example"


class Target(NamedTuple):
    """A reader and inputs that it accepts."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


@cache
def published() -> Published:
    return publish(*conversation(blocks=20))


def read_cbor(data: bytes) -> None:
    assert dagcbor.encode(dagcbor.decode(data)) == data


def read_json(data: bytes) -> None:
    assert dagjson.encode(dagjson.decode(data)) == data


def read_foreign_cbor(data: bytes) -> None:
    assert write_value("dag-cbor", read_dag_cbor(data)) == data


def read_node(data: bytes) -> None:
    assert decode_node(data).encode() == data
    links(data)


def read_links(codec: str) -> Callable[[bytes], None]:
    """Find what a block of a codec links to."""

    def read(data: bytes) -> None:
        code = {"dag-cbor": b"\x71", "dag-json": b"\xa9\x02", "dag-pb": b"\x70"}[codec]
        cid = any_cid(b"\x01" + code + b"\x12\x20" + hashlib.sha256(data).digest())
        for link in links_of(cid, data):
            assert parse_cid(str(link)) == link

    return read


def read_cars(data: bytes) -> None:
    for cid, block in read_car(io.BytesIO(data)):
        cid.verify(block)


def read_foreign_cars(data: bytes) -> None:
    for cid, block in read_car(io.BytesIO(data), skip_foreign=True).unchecked(lambda size: memoryview(bytearray(size))):
        assert len(block) <= len(data)
        assert cid.codec in ("raw", "dag-cbor")


def read_cid_text(data: bytes) -> None:
    cid = parse_cid(data.decode("latin-1"))
    assert parse_cid(str(cid)) == cid


def read_cid(data: bytes) -> None:
    assert any_cid(data) == data


def read_grant(data: bytes) -> None:
    grant = Grant.decode(data)
    check_grant(grant)
    assert data == published().grant.encode(), "a grant that nobody signed"
    assert open_grant(grant, READER) == KEY


def read_signed_grant(data: bytes) -> None:
    """A grant that its issuer signed, whatever stands in it."""
    grant = Grant.decode(data)
    grant = replace(grant, issuer=ISSUER.public().signing)
    grant = replace(grant, signature=ISSUER.signing.sign(grant.body()))
    assert open_grant(grant, READER) == KEY


def read_receipt(data: bytes) -> None:
    receipt = Receipt.decode(data)
    check_receipt(receipt)
    assert data == _RECEIPT, "a receipt that nobody signed"


def read_sealed(data: bytes) -> None:
    store = MemoryStore()
    for cid in published().store.cids():
        store.put_many([(cid, published().store.get(cid))])
    root = Cid.of(data, "dag-cbor", "sha2-256")
    store.put_many([(root, data)])
    sealed, grant = find_grant(root, [StorePeer(store)])
    assert sealed.commitment == grant.commitment


def read_sealed_page(data: bytes) -> None:
    open_page(KEY, published().sealed.commitment, data)
    assert data in (published().store.get(published().sealed.manifest), first_page()), "bytes that nobody sealed"


def first_page() -> bytes:
    return published().store.get(published().manifest().pages[0].cid)


def read_manifest(data: bytes) -> None:
    """A first page by somebody who has the key, and lies."""
    sealed = published().sealed
    assert Manifest.decode(data).encode() == data
    table = OpenedTable(sealed, KEY, seal_page(KEY, sealed.commitment, data, 1))
    for segment in table.conversation.segments:
        assert len(table.unread_pages(segment)) <= 256


def read_page(data: bytes) -> None:
    """Another page by the same liar. What leads to a leaf has to open it, or the leaf is refused."""
    table = published().table()
    assert Page.decode(data).encode() == data
    segment = table.conversation.segments[0]
    table.learn(segment, [seal_page(KEY, published().sealed.commitment, data, 1)])
    for part in table.parts(segment):
        for leaf in list(part.leaves.values())[:3]:
            place = table.place(leaf)
            assert place is not None
            try:
                sealed = published().store.get(place.sealed)
            except KeyError:
                continue
            try:
                table.open(place, sealed, lambda size: memoryview(bytearray(size)))
            except (AuthFailed, DigestMismatch):
                continue


def read_link(data: bytes) -> None:
    text = data.decode("latin-1")
    link = ShareLink.parse(text)
    assert str(link).replace("/#", "#") == text.replace("/#", "#")


def read_key_file(data: bytes) -> None:
    found = KeyFile.decode(data)
    if found.lock is None:
        assert opened(found, "me", None).reveal() == found.seed


def read_lineage(data: bytes) -> None:
    found = Lineage.decode(data)
    for reader in found.readers:
        reader.identity()


def read_public(data: bytes) -> None:
    text = data.decode("latin-1")
    public = PublicIdentity.parse(text)
    assert str(public) == text
    if public.pq is not None:
        public.pq_key()


def read_public_body(data: bytes) -> None:
    """A key whose checksum is right, whatever it holds: what was given for a key is used to wrap."""
    public = PublicIdentity.parse(str(replace(READER.public(pq=True), sealing=data[:32], pq=data[32:])))
    kem: Kem = "mlkem768-x25519"
    grant = make_grant(ISSUER, KEY, [public], lineage=LINEAGE, epoch=1, root=_ROOT_LEAF, alg=1, kem=kem)
    assert open_grant(grant, ISSUER) == KEY


@cache
def terms() -> Terms:
    ring = make_ring(each.public().ring for each in (ISSUER, READER, OTHER, type(READER)(bytes([4]) * 32)))
    grant = published().grant
    return Terms(grant.cid(), grant.root, grant.access, ring.cid(), ring, frozenset({READER.public().signing}))


@cache
def proof_keys() -> dict[str, bytes]:
    signing = READER.signing.private_bytes_raw()
    seed = KEY.access_seed(published().grant.root)
    ring = READER.ring_scalar.to_bytes(32, "big")
    return {"access-sig/ed25519/1": seed, "member-sig/ed25519/1": signing, "ring-or/secp256k1/1": ring}


def read_challenge(data: bytes) -> None:
    proof = answer(data, terms(), proof_keys(), audience=AUDIENCE, now_s=NOW_S)
    challenge = Challenge.decode(data)
    assert challenge.audience == AUDIENCE
    assert SCHEMES[challenge.scheme].verify(challenge, terms(), proof).ok


def read_proof(data: bytes) -> None:
    """The first byte says by which scheme; only what the scheme's own prover made may pass."""
    scheme = list(SCHEMES)[data[0] % 3] if data else "none"
    challenge = replace(challenges()[0], scheme=scheme)
    verifier = Verifier(AUDIENCE)
    verifier._open[challenge.cid()] = challenge.expires_s, None
    verdict = verifier.check(challenge.encode(), data[1:], terms(), now_s=NOW_S)
    assert verdict.ok
    assert data[1:] in {seed[1:] for seed in proofs()}, "a proof that nobody made"


@cache
def challenges() -> list[Challenge]:
    root, grant = published().grant.root, published().grant.cid()
    return [Challenge(scheme, grant, root, AUDIENCE, NOW_S + 60, bytes(range(32))) for scheme in SCHEMES]


@cache
def proofs() -> tuple[bytes, ...]:
    return tuple(
        bytes([at]) + SCHEMES[each.scheme].prove(each, terms(), proof_keys()[each.scheme])
        for at, each in enumerate(challenges())
    )


_ROOT = Cid.of(b"root", "dag-cbor", "sha2-256")
_LOCK = Lock(bytes(16), 64 << 10, 3, 4, bytes(48))
_LINKS = (ShareLink.make(_ROOT, KEY, bytes(32)), ShareLink(_ROOT, _LOCK, bytes(16)))
_KEYS = (key_bytes(READER, None), KeyFile(None, _LOCK).encode())
_LINEAGE = Lineage.begin("talk", bytes(32), "2026-01-01T00:00:00Z", alg=1, kem="x25519")
_ROOT_LEAF = Cid.of(b"root", "raw", "sha2-256")
_PUBLIC = READER.public(pq=True)
_OLD = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd"
_INLINE = "bafkqabdumvzxi"
_LINKED = bytes.fromhex("122d0a221220") + bytes(32) + b"\x12\x04name" + b"\x18\x85\x02" + bytes.fromhex("0a0408021800")
"""A directory of one entry."""
_VALUE: AnyValue = {"half": 0.5, "big": 1 << 63, "deep": [[{"x": [_ROOT, parse_cid(_OLD)]}]], "": b"bytes", "l": [None]}
_FOREIGN: dict[ValueCodec | Literal["dag-pb"], tuple[bytes, ...]] = {
    "dag-cbor": (write_value("dag-cbor", _VALUE),),
    "dag-json": (write_value("dag-json", _VALUE),),
    "dag-pb": (_LINKED, b"\x0a\x04\x08\x02\x18\x00"),
}
_RECEIPT = make_receipt(ISSUER, published().table().conversation, "cyberkv", None).encode()
_NODES = tuple(node.encode() for node in NODES.values())
_CAR = (FOLDER / "golden.car").read_bytes()
_CIDS = (_ROOT, _ROOT_LEAF, parse_cid(_OLD), parse_cid(_INLINE), Cid.of(b"", "raw", "blake3"))

TARGETS = {
    "dag-cbor": Target(read_cbor, _NODES),
    "dag-json": Target(read_json, _FOREIGN["dag-json"]),
    "foreign dag-cbor": Target(read_foreign_cbor, (*_FOREIGN["dag-cbor"], *_NODES)),
    **{f"links of {codec}": Target(read_links(codec), data) for codec, data in _FOREIGN.items()},
    "node": Target(read_node, _NODES),
    "car": Target(read_cars, (_CAR,)),
    "foreign car": Target(read_foreign_cars, (_CAR,)),
    "cid": Target(read_cid, tuple(map(bytes, _CIDS))),
    "cid text": Target(read_cid_text, tuple(str(cid).encode() for cid in _CIDS)),
    "grant": Target(read_grant, (published().grant.encode(),)),
    "signed grant": Target(read_signed_grant, (published().grant.encode(),)),
    "receipt": Target(read_receipt, (_RECEIPT,)),
    "sealed root": Target(read_sealed, (published().sealed.encode(),)),
    "sealed page": Target(read_sealed_page, (published().store.get(published().sealed.manifest), first_page())),
    "manifest": Target(read_manifest, (published().manifest().encode(),)),
    "page": Target(read_page, (published().page().encode(),)),
    "link": Target(read_link, tuple(str(link).encode() for link in _LINKS)),
    "key file": Target(read_key_file, _KEYS),
    "lineage": Target(read_lineage, (_LINEAGE.with_reader("one", READER.public()).encode(),)),
    "public key": Target(read_public, (str(READER.public()).encode(), str(READER.public(pq=True)).encode())),
    "public key to wrap for": Target(read_public_body, (_PUBLIC.sealing + (_PUBLIC.pq or b""),)),
    "challenge": Target(read_challenge, tuple(each.encode() for each in challenges())),
    "proof": Target(read_proof, proofs()),
}
