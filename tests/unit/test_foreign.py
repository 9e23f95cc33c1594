"""CIDs of other people's blocks, with the `multiformats` package as the second opinion."""

import hashlib

import pytest
from multiformats import CID as OracleCid
from multiformats import multicodec, multihash

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import DigestMismatch, MalformedCid, UnsupportedFormat
from cyberkv.cybergraph.foreign import (
    CODECS,
    MOST_DIGEST_BYTES,
    ForeignCid,
    any_cid,
    multihash_of,
    parse_cid,
    read_cid,
)

DATA = b"some bytes of somebody else"
V0 = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd"


def named(codec: str, hash_name: str) -> bytes:
    """The binary CID that the other package gives."""
    size_bytes = 32 if hash_name == "blake3" else None
    return bytes(OracleCid("base32", 1, codec, multihash.digest(DATA, hash_name, size=size_bytes)))


def test_the_names_of_codecs_are_those_of_the_table() -> None:
    assert {code: multicodec.get(code=code).name for code in CODECS} == CODECS


@pytest.mark.parametrize(
    "hash_name",
    ["identity", "sha1", "sha2-256", "sha2-512", "sha3-512", "sha3-384", "sha3-256", "sha3-224", "shake-256",
     "dbl-sha2-256", "blake2b-160", "blake2b-256", "blake2b-512", "blake2s-160", "blake2s-256", "blake3", "sha2-384"],
)  # fmt: skip
def test_a_block_is_checked_by_every_hash_function(hash_name: str) -> None:
    cid = ForeignCid(named("dag-pb", hash_name))
    assert (cid.codec, cid.hash_name, cid.version) == ("dag-pb", hash_name, 1)
    cid.verify(DATA)
    cid.verify(memoryview(DATA))
    for wrong in (DATA[:-1], DATA + b"x", b"", b"S" + DATA[1:]):
        with pytest.raises(DigestMismatch):
            cid.verify(wrong)


def test_a_block_that_cannot_be_checked_is_refused_with_the_code_of_its_hash() -> None:
    keccak = ForeignCid(b"\x01\x55\x1b\x20" + bytes(32))
    assert keccak.hash_name == "0x1b"
    with pytest.raises(UnsupportedFormat, match="0x1b"):
        keccak.verify(DATA)
    short = ForeignCid(b"\x01\x55\x12\x04" + hashlib.sha256(DATA).digest()[:4])
    with pytest.raises(UnsupportedFormat, match="4 bytes"):
        short.verify(DATA)
    ForeignCid(b"\x01\x55\x12\x14" + hashlib.sha256(DATA).digest()[:20]).verify(DATA)
    with pytest.raises(UnsupportedFormat, match="40 bytes"):
        ForeignCid(b"\x01\x70\x12\x28" + bytes(40)).verify(DATA)


@pytest.mark.parametrize("base", ["base32", "base32upper", "base36", "base36upper", "base58btc", "base16",
                                  "base16upper", "base64", "base64url"])  # fmt: skip
def test_texts_in_any_base_are_the_same_cid(base: str) -> None:
    for data in (named("dag-pb", "sha2-256"), named("raw", "identity"), named("git-raw", "sha1")):
        cid = any_cid(data)
        text = OracleCid.decode(data).set(base=base).encode()
        assert parse_cid(text) == cid
        assert type(parse_cid(text)) is type(cid)
        assert str(parse_cid(text)) == OracleCid.decode(data).set(base="base32").encode()


def test_our_own_forms_are_a_cid_in_every_base() -> None:
    cid = Cid.of(DATA, "raw", "blake3")
    for base in ("base32", "base58btc", "base36", "base16"):
        assert type(parse_cid(OracleCid.decode(bytes(cid)).set(base=base).encode())) is Cid
    with pytest.raises(MalformedCid, match="use Cid"):
        ForeignCid(bytes(cid))


def test_version_0() -> None:
    cid = parse_cid(V0)
    assert isinstance(cid, ForeignCid)
    assert (cid.version, cid.codec, cid.hash_name, len(cid), str(cid)) == (0, "dag-pb", "sha2-256", 34, V0)
    newer = ForeignCid(b"\x01\x70" + cid)
    assert newer != cid
    assert multihash_of(newer) == multihash_of(cid) == newer.multihash
    assert newer.digest == cid.digest


@pytest.mark.parametrize(
    "text",
    ["", "b", "Q", "Qm", V0[:-1], V0 + "1", V0.replace("Y", "0"), "z" + V0, "x" + V0, "bafkqabdumvzxi====",
     "bafkqabdumvzx", "bafkqabdumvzxi ", "f01 55", "b" * 59, "é" * 59, "b" + "a" * 5000, "z" + "2" * 400, "fzz", "m!!",
     "bafyb2eiaaaaa", "\0", "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJD\ud800"],
)  # fmt: skip
def test_what_is_no_cid(text: str) -> None:
    with pytest.raises(MalformedCid):
        parse_cid(text)


@pytest.mark.parametrize(
    "data",
    ["", "01", "0155", "015512", "01551220", "0155122000", "02551220" + "00" * 32, "00551220" + "00" * 32,
     "1220" + "00" * 31, "1220" + "00" * 33, "8100551204" + "00" * 4, "01d5001204" + "00" * 4,
     "0155008101" + "00" * 129, "01" + "ff" * 9 + "1204" + "00" * 4, "0155" + "ff" * 12, "01551220" + "00" * 33],
)  # fmt: skip
def test_bytes_that_are_no_cid(data: str) -> None:
    with pytest.raises(MalformedCid):
        any_cid(bytes.fromhex(data))


def test_a_cid_before_other_bytes() -> None:
    for cid in (Cid.of(DATA, "dag-cbor", "sha2-256"), parse_cid(V0), ForeignCid(named("json", "blake2b-512"))):
        assert read_cid(cid + DATA) == (cid, len(cid))
        assert type(read_cid(cid + DATA)[0]) is type(cid)
        with pytest.raises(MalformedCid):
            read_cid(cid[:-1])


def test_an_identity_cid_holds_its_data_up_to_a_bound() -> None:
    most = b"x" * MOST_DIGEST_BYTES
    head = b"\x01\x55\x00\x80\x01"
    cid = ForeignCid(head + most)
    cid.verify(most)
    assert cid.digest == most
    with pytest.raises(MalformedCid, match="129"):
        ForeignCid(b"\x01\x55\x00\x81\x01" + most + b"x")


def test_codecs_without_a_name_have_their_number() -> None:
    assert ForeignCid(b"\x01\x80\x06\x12\x20" + bytes(32)).codec == "0x300"


def test_both_kinds_mix_as_keys() -> None:
    own, other = Cid.of(DATA, "raw", "blake3"), parse_cid(V0)
    assert {own: 1, other: 2}[parse_cid(V0)] == 2
    assert repr(other) == f"ForeignCid({V0})"
