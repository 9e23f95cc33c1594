"""Prefix keys: one key for one input, none shared, and a keyed form that needs its secret."""

import hashlib
import hmac
import json

import cbrrr
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.prefix import PrefixKey, keyed, prefix_key, prefix_keys
from fixtures.make import FOLDER

VECTOR = json.loads((FOLDER / "vectors.json").read_text())["prefix_keys"]
MODEL = Cid.parse(VECTOR["model"])
OTHER = Cid.of(b"another model", "dag-cbor", "sha2-256")
tokens = st.lists(st.integers(0, 300), max_size=40)


def test_vectors() -> None:
    keys = list(prefix_keys(MODEL, VECTOR["tokens"], VECTOR["block_size"]))
    assert [key.hex() for key in keys] == VECTOR["keys"]
    secret = bytes.fromhex(VECTOR["secret"])
    assert [keyed(key, secret).hex() for key in keys] == VECTOR["keyed"]
    assert [hmac.new(secret, key, hashlib.sha256).hexdigest() for key in keys] == VECTOR["keyed"]
    assert not {*VECTOR["keys"]} & {*VECTOR["keyed"]}


def test_the_key_is_the_hash_of_plain_dag_cbor() -> None:
    first = prefix_key(MODEL, None, [1, 2, 300])
    assert first == hashlib.sha256(cbrrr.encode_dag_cbor([MODEL, None, [1, 2, 300]], cid_type=Cid)).digest()
    second = prefix_key(MODEL, first, [4])
    assert second == hashlib.sha256(cbrrr.encode_dag_cbor([MODEL, bytes(first), [4]], cid_type=Cid)).digest()


@given(tokens, st.integers(1, 20))
def test_one_key_for_each_full_block_chained(tokens: list[int], block_size: int) -> None:
    keys = list(prefix_keys(MODEL, tokens, block_size))
    assert len(keys) == len(tokens) // block_size
    parent: PrefixKey | None = None
    for index, key in enumerate(keys):
        assert key == prefix_key(MODEL, parent, tokens[index * block_size : (index + 1) * block_size])
        parent = key


@given(tokens, tokens, st.integers(1, 8))
def test_keys_agree_exactly_as_far_as_the_tokens_do(a: list[int], b: list[int], block_size: int) -> None:
    keys_a, keys_b = list(prefix_keys(MODEL, a, block_size)), list(prefix_keys(MODEL, b, block_size))
    for index, (key_a, key_b) in enumerate(zip(keys_a, keys_b, strict=False)):
        end = (index + 1) * block_size
        assert (key_a == key_b) == (a[:end] == b[:end])
    assert not {*keys_a} & {*prefix_keys(OTHER, a, block_size)}


@given(tokens.filter(bool), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_keyed_form_needs_its_secret(tokens: list[int], secret: bytes, guess: bytes) -> None:
    key = prefix_key(MODEL, None, tokens)
    assert keyed(key, secret) != key
    assert (keyed(key, secret) == keyed(key, guess)) == (secret == guess)
