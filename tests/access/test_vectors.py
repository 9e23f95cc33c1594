"""The key schedule and the form of a sealed leaf, byte for byte, as docs/privacy.md fixes them."""

import hashlib

import pytest

from cyberkv.cybergraph.access.aead import AES_256_GCM, CHACHA20_POLY1305
from cyberkv.cybergraph.access.contentkey import ContentKey, derive, framed
from cyberkv.cybergraph.access.leaf import LeafContext, open_leaf, seal_leaf
from cyberkv.cybergraph.access.padding import pad, padme_bytes, unpad
from cyberkv.cybergraph.access.page import open_page, seal_page
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import AuthFailed, UnsupportedFormat
from cyberkv.cybergraph.prefix import PrefixKey

KEY = ContentKey(bytes(range(0x20, 0x40)))
CONTEXT = LeafContext(
    Cid.of(b"model", "dag-cbor", "sha2-256"), 3, 0, 16, "f16", PrefixKey(hashlib.sha256(b"prefix").digest())
)
PLAINTEXT = bytes(7 * i % 256 for i in range(64))
SEALED = bytes.fromhex(
    "434b4201fab901b64880ea57ef29fe01bddc325b0aa9fc95f698956b21f2c89c94ceb2b642bf29020bfdd06666e30baec7f2bf88e49657be94"
    "2ece630c0d3e1d89df1756f8a8a55506ce99ca616a1670bced8952"
)


def test_the_key_of_leaves() -> None:
    assert KEY.leaf_key().hex() == "84c110e00226dd6effbbb383259e54576497b2191bca7f7c213d3ed44673f1c0"


def test_the_context_of_a_leaf() -> None:
    assert CONTEXT.digest().hex() == "e1d1605ccee4820c849fe70ada7ada0e94f148f39fc42b11fb28f18303e92c54"


def test_a_sealed_leaf() -> None:
    sealed, digest = seal_leaf(KEY.leaf_key(), CONTEXT.digest(), PLAINTEXT, AES_256_GCM)
    assert digest.hex() == "d8bc63b4fc1156e5e7d95a418b9bf54cd3174bedbc2db40f74895349b229b3c0"
    assert sealed == SEALED
    assert hashlib.sha256(sealed).hexdigest() == "54ce7e6b5c2fe40a2d639d791743e91ef63ffdcec0916e90b6785c56d437baff"
    assert open_leaf(KEY.leaf_key(), CONTEXT.digest(), digest, SEALED) == PLAINTEXT


def test_the_commitment() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    issuer = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    commitment = KEY.commitment(issuer, hashlib.sha256(b"lineage").digest()[:16], 1)
    assert commitment.hex() == "1255206f5147c7f8bb95b1f9d6924d7939d300ee38695d12b17532e18b79540d"


def test_the_second_cipher_gives_other_bytes_and_opens() -> None:
    key, context = KEY.leaf_key(), CONTEXT.digest()
    sealed, digest = seal_leaf(key, context, PLAINTEXT, CHACHA20_POLY1305)
    assert sealed[:4] == b"CKB\2"
    assert sealed[4:] != SEALED[4:]
    assert open_leaf(key, context, digest, sealed) == PLAINTEXT


def test_no_two_inputs_frame_alike() -> None:
    assert framed(b"ab", b"c") != framed(b"a", b"bc") != framed(b"abc")
    assert derive(bytes(32), "a", b"b") != derive(bytes(32), "a", b"", b"b")


@pytest.mark.parametrize("at", [0, 1, 2, 4, 30, 67, 68, 83])
def test_a_flipped_bit_is_refused(at: int) -> None:
    bad = bytearray(SEALED)
    bad[at] ^= 1
    digest = hashlib.sha256(PLAINTEXT).digest()
    with pytest.raises(AuthFailed):
        open_leaf(KEY.leaf_key(), CONTEXT.digest(), digest, bad)


def test_an_unknown_cipher_is_named_not_tried() -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        open_leaf(KEY.leaf_key(), CONTEXT.digest(), bytes(32), b"CKB\0" + SEALED[4:])
    assert caught.value.data == {"alg": 0}


@pytest.mark.parametrize(
    "sealed", [SEALED[:-1], SEALED + b"\0", SEALED[:19], b"", b"CKM\1" + SEALED[4:]],
    ids=["cut", "longer", "headless", "empty", "a page"],
)  # fmt: skip
def test_other_lengths_and_kinds_are_refused(sealed: bytes) -> None:
    with pytest.raises(AuthFailed):
        open_leaf(KEY.leaf_key(), CONTEXT.digest(), hashlib.sha256(PLAINTEXT).digest(), sealed)


@pytest.mark.parametrize(("field", "value"), [
    ("group", 2), ("position", 16), ("tokens", 15), ("dtype", "f32"),
    ("model", Cid.of(b"other", "dag-cbor", "sha2-256")), ("prefix", PrefixKey(bytes(32))),
])  # fmt: skip
def test_a_leaf_opens_in_its_place_alone(field: str, value: object) -> None:
    from dataclasses import replace

    elsewhere = replace(CONTEXT, **{field: value})
    with pytest.raises(AuthFailed):
        open_leaf(KEY.leaf_key(), elsewhere.digest(), hashlib.sha256(PLAINTEXT).digest(), SEALED)


def test_one_ciphertext_does_not_open_under_two_digests() -> None:
    with pytest.raises(AuthFailed):
        open_leaf(KEY.leaf_key(), CONTEXT.digest(), bytes(32), SEALED)


def test_padding_hides_most_of_a_size_and_costs_an_eighth_at_most() -> None:
    sizes = {padme_bytes(size) for size in range(1024, 4096)}
    assert len(sizes) < 60
    for size in range(1, 5000, 7):
        assert size <= padme_bytes(size) <= size * 1.125 + 1
        assert unpad(pad(bytes(size))) == bytes(size)


def test_padding_that_is_not_zero_is_refused() -> None:
    padded = bytearray(pad(b"hello"))
    padded[-1] = 1
    with pytest.raises(AuthFailed):
        unpad(bytes(padded))
    with pytest.raises(AuthFailed):
        unpad(pad(b"hello") + b"\0")


def test_a_page_opens_under_its_key_and_commitment_alone() -> None:
    sealed = seal_page(KEY, b"c" * 32, b"content", AES_256_GCM)
    assert open_page(KEY, b"c" * 32, sealed) == b"content"
    assert seal_page(KEY, b"c" * 32, b"content", AES_256_GCM) == sealed
    assert seal_page(KEY, b"c" * 32, b"contenu", AES_256_GCM)[:20] != sealed[:20]  # another salt, so another key
    for key, commitment in ((ContentKey(bytes(32)), b"c" * 32), (KEY, b"d" * 32)):
        with pytest.raises(AuthFailed):
            open_page(key, commitment, sealed)
    for at in (0, 3, 4, 19, 20, len(sealed) - 1):
        bad = bytearray(sealed)
        bad[at] ^= 0x80
        with pytest.raises((AuthFailed, UnsupportedFormat)):
            open_page(KEY, b"c" * 32, bad)


def test_a_content_key_is_not_shown_pickled_or_hashed() -> None:
    import pickle

    assert KEY.reveal().hex() not in repr(KEY)
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    with pytest.raises(TypeError):
        hash(KEY)
