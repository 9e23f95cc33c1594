"""CIDs: four forms, one text each, nothing else."""

import base64
import hashlib
import json

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import CID_BYTES, CID_PREFIXES, Cid
from cyberkv.cybergraph.errors import Corrupt, DigestMismatch, MalformedCid
from fixtures.make import FOLDER

VECTORS = json.loads((FOLDER / "vectors.json").read_text())["cids"]

cids = st.builds(
    lambda prefix, digest: Cid(prefix + digest),
    st.sampled_from(CID_PREFIXES),
    st.binary(min_size=32, max_size=32),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["data"][:8] or "empty")
def test_vectors(vector: dict) -> None:
    data = bytes.fromhex(vector["data"])
    for form, expected in vector["forms"].items():
        codec, hash_name = form.split()
        cid = Cid.of(data, codec, hash_name)
        assert cid.hex() == expected["bytes"]
        assert str(cid) == expected["text"]
        assert (cid.codec, cid.hash_name) == (codec, hash_name)
        cid.verify(data)
        with pytest.raises(DigestMismatch) as caught:
            cid.verify(data + b"\0")
        assert caught.value.data["cid"] == expected["text"]


def test_digests_are_those_of_the_hash_functions() -> None:
    assert Cid.of(b"x", "raw", "sha2-256").digest == hashlib.sha256(b"x").digest()
    assert Cid.of(b"x", "raw", "blake3").digest == blake3(b"x").digest()
    assert Cid.of(b"x", "raw", "blake3").digest != Cid.of(b"x", "raw", "sha2-256").digest


def test_same_bytes_under_another_codec_is_another_cid() -> None:
    assert Cid.of(b"x", "raw", "blake3") != Cid.of(b"x", "dag-cbor", "blake3")


@given(cids)
def test_text_is_base32_without_padding_and_comes_back(cid: Cid) -> None:
    assert str(cid) == "b" + base64.b32encode(cid).decode().rstrip("=").lower()
    assert Cid.parse(str(cid)) == cid
    assert type(Cid.parse(str(cid))) is Cid


@given(cids, st.integers(0, 58), st.characters())
def test_text_with_one_changed_letter_never_reads_as_the_same_cid(cid: Cid, at: int, letter: str) -> None:
    text = str(cid)
    changed = text[:at] + letter + text[at + 1 :]
    try:
        other = Cid.parse(changed)
    except MalformedCid:
        return
    assert (other == cid) == (changed == text)
    assert str(other) == changed


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_by_type(text: str) -> None:
    with pytest.raises(MalformedCid):
        Cid.parse(text)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_by_type(data: bytes) -> None:
    if len(data) == CID_BYTES and data[:4] in CID_PREFIXES:
        assert Cid(data) == data
    else:
        with pytest.raises(MalformedCid):
            Cid(data)


def test_a_cid_is_its_bytes() -> None:
    cid = Cid.of(b"x", "raw", "blake3")
    assert {bytes(cid): 1}[cid] == 1
    assert bytes(cid) == cid
    assert type(bytes(cid)) is bytes
    assert repr(cid) == f"Cid({cid})"


def test_errors_are_corrupt_and_say_what_to_do() -> None:
    with pytest.raises(Corrupt) as caught:
        Cid.parse("bogus")
    assert "bogus" in str(caught.value)
    assert caught.value.hint
