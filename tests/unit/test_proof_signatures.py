"""The two schemes that sign: who can prove, who cannot, and keys for which anybody could."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cyberkv.cybergraph.access.contentkey import ContentKey
from cyberkv.cybergraph.access.grant import make_grant
from cyberkv.cybergraph.access.identity import Identity
from cyberkv.cybergraph.access.proof import AccessSig, MemberSig, Terms, make_ring
from cyberkv.cybergraph.access.proof.signing import public_key
from cyberkv.cybergraph.errors import BadKey, BadSignature, ProofRejected
from fixtures.proofs import ACCESS_SEED, MEMBER_SEED, RING, TERMS, challenge

ACCESS, MEMBER = AccessSig(), MemberSig()
ASKED, ASKED_MEMBER = challenge(ACCESS.id), challenge(MEMBER.id)
P = (1 << 255) - 19
ORDER_8_Y = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
SMALL_Y = (0, 1, P - 1, ORDER_8_Y, P - ORDER_8_Y)
SMALL_ORDER = [(y | sign << 255).to_bytes(32, "little") for y in SMALL_Y for sign in (0, 1)]
NOT_CANONICAL = [(y | sign << 255).to_bytes(32, "little") for y in (P, P + 1, P + 18) for sign in (0, 1)]
NEUTRAL = (1).to_bytes(32, "little")
FORGED = NEUTRAL + bytes(32)
"""R the neutral point, s zero."""


def flips(data: bytes) -> list[bytes]:
    return [
        (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))
    ]  # fmt: skip


def test_control_the_library_takes_the_forgery() -> None:
    for statement in (b"one", b"two", ACCESS.statement(ASKED, TERMS)):
        Ed25519PublicKey.from_public_bytes(NEUTRAL).verify(FORGED, statement)


def test_control_these_are_the_points_of_small_order() -> None:
    d = -121665 * pow(121666, -1, P) % P

    def doubled(y: int) -> int:
        x_square = (y * y - 1) * pow(d * y * y + 1, -1, P) % P
        return (y * y + x_square) * pow(1 - d * x_square * y * y, -1, P) % P

    assert [doubled(doubled(doubled(y))) for y in SMALL_Y] == [1] * 5
    base_y = 4 * pow(5, -1, P) % P
    assert doubled(doubled(doubled(base_y))) != 1


@pytest.mark.parametrize("key", [*SMALL_ORDER, *NOT_CANONICAL, bytes(31), b""], ids=bytes.hex)
def test_keys_that_prove_nothing_are_refused(key: bytes) -> None:
    with pytest.raises(BadKey):
        replace(TERMS, access_key=key)
    with pytest.raises(BadKey):
        replace(TERMS, roster=TERMS.roster | {key})
    if len(key) == 32:
        assert not MEMBER.verify(ASKED_MEMBER, TERMS, key + FORGED).ok


def test_the_forgery_fails_under_a_sound_key() -> None:
    assert not ACCESS.verify(ASKED, TERMS, FORGED).ok


def test_every_flipped_bit_of_a_proof_is_refused() -> None:
    proof = ACCESS.prove(ASKED, TERMS, ACCESS_SEED)
    assert ACCESS.verify(ASKED, TERMS, proof).ok
    assert not any(ACCESS.verify(ASKED, TERMS, other).ok for other in flips(proof))
    proof = MEMBER.prove(ASKED_MEMBER, TERMS, MEMBER_SEED)
    assert MEMBER.verify(ASKED_MEMBER, TERMS, proof).ok
    assert not any(MEMBER.verify(ASKED_MEMBER, TERMS, other).ok for other in flips(proof))


@pytest.mark.parametrize("size_bytes", [0, 1, 32, 63, 64, 65, 95, 97])
def test_other_lengths_are_refused(size_bytes: int) -> None:
    for scheme, asked, seed in ((ACCESS, ASKED, ACCESS_SEED), (MEMBER, ASKED_MEMBER, MEMBER_SEED)):
        proof = scheme.prove(asked, TERMS, seed)
        if size_bytes != len(proof):
            assert not scheme.verify(asked, TERMS, (proof + bytes(64))[:size_bytes]).ok


def test_the_key_of_an_epoch_proves_nothing_in_the_next() -> None:
    first, second = (ContentKey(bytes((epoch,)) * 32).access_seed(TERMS.root) for epoch in (1, 2))
    before, after = (replace(TERMS, access_key=public_key(seed)) for seed in (first, second))
    proof = ACCESS.prove(ASKED, before, first)
    assert ACCESS.verify(ASKED, before, proof).ok
    assert not ACCESS.verify(ASKED, after, proof).ok
    with pytest.raises(ProofRejected) as caught:
        ACCESS.prove(ASKED, after, first)
    assert caught.value.data["reason"] == "wrong-key"
    assert ACCESS.verify(ASKED, after, ACCESS.prove(ASKED, after, second)).ok


def test_terms_are_taken_from_a_signed_grant_only() -> None:
    issuer, key = Identity(bytes(32)), ContentKey(bytes(range(32)))
    ring = make_ring(Identity(bytes((at,)) * 32).public().ring for at in range(4))
    grants = [
        make_grant(issuer, key, [], lineage=bytes(16), epoch=epoch, root=TERMS.root, alg=1, ring=ring.cid())
        for epoch in (1, 2)
    ]
    terms, later = (Terms.of(grant, ring=ring) for grant in grants)
    assert (terms.grant, terms.root, terms.access_key) == (grants[0].cid(), TERMS.root, grants[0].access)
    asked = replace(ASKED, grant=terms.grant)
    proof = ACCESS.prove(asked, terms, key.access_seed(terms.root))
    assert ACCESS.verify(asked, terms, proof).ok
    assert not ACCESS.verify(replace(asked, grant=later.grant), later, proof).ok
    with pytest.raises(BadSignature):
        Terms.of(replace(grants[0], access=TERMS.access_key))
    with pytest.raises(ProofRejected):
        Terms.of(grants[0], ring=make_ring(ring.keys + RING.keys))


def test_a_proof_by_the_access_key_says_nothing_about_who() -> None:
    assert ACCESS.prove(ASKED, TERMS, ACCESS_SEED) == ACCESS.prove(ASKED, TERMS, ACCESS_SEED)
    assert ACCESS.hides == "reader-in-group"


def test_a_member_is_named_and_others_are_refused() -> None:
    seeds = [bytes((at,)) * 32 for at in range(3)]
    terms: Terms = replace(TERMS, roster=frozenset(map(public_key, seeds[:2])))
    for seed in seeds[:2]:
        verdict = MEMBER.verify(ASKED_MEMBER, terms, MEMBER.prove(ASKED_MEMBER, terms, seed))
        assert verdict.claims == {f"member:{public_key(seed).hex()}"}
    stranger = MEMBER.prove(ASKED_MEMBER, terms, seeds[2])
    assert MEMBER.verify(ASKED_MEMBER, terms, stranger).reason == "not-a-member"
    borrowed = public_key(seeds[0]) + stranger[32:]
    assert MEMBER.verify(ASKED_MEMBER, terms, borrowed).reason == "bad-proof"
    assert not MEMBER.verify(ASKED_MEMBER, replace(terms, roster=frozenset()), borrowed).ok


@pytest.mark.parametrize("size_bytes", [0, 31, 33])
def test_a_seed_of_another_size_is_refused(size_bytes: int) -> None:
    for scheme, asked in ((ACCESS, ASKED), (MEMBER, ASKED_MEMBER)):
        with pytest.raises(BadKey):
            scheme.prove(asked, TERMS, bytes(size_bytes))
