"""Laws of ring proofs: every member can prove, nobody else can, and no proof shows who did."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.access.identity import RING_ORDER
from cyberkv.cybergraph.access.proof import RingOr, Terms, make_ring, ring_or
from cyberkv.cybergraph.access.proof.group_native import NativeGroup
from cyberkv.cybergraph.access.proof.group_plain import PlainGroup
from fixtures.proofs import FRESH, RING, RING_SECRETS, TERMS, challenge

NATIVE, PLAIN = RingOr(NativeGroup()), RingOr(PlainGroup())
ASKED = challenge(NATIVE.id)
OTHER = replace(ASKED, nonce=bytes(32))
secrets = st.integers(1, RING_ORDER - 1)
rings = st.lists(secrets, min_size=4, max_size=12, unique_by=lambda secret: min(secret, RING_ORDER - secret))


def terms_of(members: Sequence[int]) -> Terms:
    ring = make_ring(map(NATIVE.group.public_key, members))
    return replace(TERMS, ring=ring, ring_cid=ring.cid())


def as_bytes(secret: int) -> bytes:
    return secret.to_bytes(32, "big")


def made(scheme: RingOr, secret: int, fresh: bytes = FRESH, asked: ring_or.Challenge = ASKED) -> bytes:
    return scheme._prove(scheme.statement(asked, TERMS), RING.keys, as_bytes(secret), fresh)


def pairs(proof: bytes) -> list[bytes]:
    return [proof[at : at + 64] for at in range(0, len(proof), 64)]


@given(rings)
def test_every_member_proves_and_only_this_statement(members: list[int]) -> None:
    terms = terms_of(members)
    for secret in members:
        proof = NATIVE.prove(ASKED, terms, as_bytes(secret))
        assert len(proof) == 64 * len(members)
        assert NATIVE.verify(ASKED, terms, proof).ok
        assert not NATIVE.verify(OTHER, terms, proof).ok


@settings(max_examples=5)
@given(rings, st.binary(min_size=32, max_size=32))
def test_both_libraries_give_the_same_bytes_and_take_each_others(members: list[int], fresh: bytes) -> None:
    terms = terms_of(members[:4])
    ring, statement = terms.ring, NATIVE.statement(ASKED, terms)
    assert ring is not None
    assert PLAIN.statement(ASKED, terms) == statement
    for secret in members[:4]:
        one, other = (scheme._prove(statement, ring.keys, as_bytes(secret), fresh) for scheme in (NATIVE, PLAIN))
        assert one == other
    assert PLAIN.verify(ASKED, terms, NATIVE.prove(ASKED, terms, as_bytes(members[0]))).ok
    assert NATIVE.verify(ASKED, terms, PLAIN.prove(ASKED, terms, as_bytes(members[1]))).ok
    assert not PLAIN.verify(OTHER, terms, one).ok


def test_every_flipped_bit_is_refused() -> None:
    proof = made(NATIVE, RING_SECRETS[0])
    assert NATIVE.verify(ASKED, TERMS, proof).ok
    whole = int.from_bytes(proof, "big")
    for bit in range(8 * len(proof)):
        flipped = (whole ^ 1 << bit).to_bytes(len(proof), "big")
        assert not NATIVE.verify(ASKED, TERMS, flipped).ok


@settings(max_examples=15)
@given(st.integers(0, 8 * 64 * len(RING.keys) - 1))
def test_a_flipped_bit_is_refused_by_the_other_library_too(bit: int) -> None:
    proof = made(NATIVE, RING_SECRETS[0])
    flipped = (int.from_bytes(proof, "big") ^ 1 << bit).to_bytes(len(proof), "big")
    assert not PLAIN.verify(ASKED, TERMS, flipped).ok


@given(st.binary(max_size=400) | st.binary(min_size=64 * len(RING.keys), max_size=64 * len(RING.keys)))
def test_other_bytes_prove_nothing_and_break_nothing(proof: bytes) -> None:
    assert not NATIVE.verify(ASKED, TERMS, proof).ok


def test_pairs_in_another_order_prove_nothing() -> None:
    parts = pairs(made(NATIVE, RING_SECRETS[0]))
    assert NATIVE.verify(ASKED, TERMS, b"".join(parts)).ok
    assert not NATIVE.verify(ASKED, TERMS, b"".join(parts[1:] + parts[:1])).ok
    assert not NATIVE.verify(ASKED, TERMS, b"".join(parts[::-1])).ok


@pytest.mark.parametrize("secret", RING_SECRETS)
def test_the_provers_pair_is_drawn_like_any_other_and_alone_moves(secret: int) -> None:
    own = RING.keys.index(NATIVE.group.public_key(secret))
    drawn = ring_or._draw(2 * len(RING.keys), NATIVE.statement(ASKED, TERMS), as_bytes(secret), FRESH)
    plain = [as_bytes(c) + as_bytes(z) for c, z in zip(drawn[: len(RING.keys)], drawn[len(RING.keys) :], strict=True)]
    moved = [at for at, pair in enumerate(pairs(made(NATIVE, secret))) if pair != plain[at]]
    assert moved == [own]


def test_nobody_without_a_key_can_meet_the_hash_but_whoever_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Zero knowledge: pairs drawn without any key are a proof as soon as the hash is chosen to fit them. So a
    # proof holds nothing that could not be made up, and what convinces is that the hash is chosen by no one.
    drawn = ring_or._draw(2 * len(RING.keys), b"", b"", FRESH)
    simulated = b"".join(map(as_bytes, drawn))
    assert not NATIVE.verify(ASKED, TERMS, simulated).ok
    monkeypatch.setattr(ring_or, "_hash", lambda *_: sum(drawn[::2]) % RING_ORDER)
    assert NATIVE.verify(ASKED, TERMS, simulated).ok


def test_a_proof_says_neither_who_nor_that_two_are_by_one() -> None:
    proofs = [NATIVE.prove(ASKED, TERMS, as_bytes(secret)) for secret in (*RING_SECRETS, RING_SECRETS[0])]
    assert len({pair for proof in proofs for pair in pairs(proof)}) == len(proofs) * len(RING.keys)
    assert len({str(NATIVE.verify(ASKED, TERMS, proof)) for proof in proofs}) == 1


def test_a_stuck_source_of_randomness_shares_no_draw_between_statements_or_secrets() -> None:
    # Schnorr's k used twice gives the key away. Of one pair, z - c*x is that k.
    ks = set()
    for asked in (ASKED, OTHER):
        for secret in RING_SECRETS:
            own = RING.keys.index(NATIVE.group.public_key(secret))
            pair = pairs(made(NATIVE, secret, bytes(32), asked))[own]
            c, z = int.from_bytes(pair[:32], "big"), int.from_bytes(pair[32:], "big")
            ks.add((z - c * secret) % RING_ORDER)
    assert len(ks) == 2 * len(RING_SECRETS)
    assert made(NATIVE, RING_SECRETS[0], bytes(32)) == made(NATIVE, RING_SECRETS[0], bytes(32))
    assert made(NATIVE, RING_SECRETS[0], bytes(32)) != made(NATIVE, RING_SECRETS[0], FRESH)


@given(st.integers(1, 64), st.binary(max_size=64))
def test_draws_are_scalars_above_zero(count: int, seed: bytes) -> None:
    drawn = ring_or._draw(count, seed, b"", b"")
    assert len({*drawn}) == len(drawn) == count
    assert all(0 < scalar < RING_ORDER for scalar in drawn)
