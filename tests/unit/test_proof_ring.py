"""Rings and ring proofs: which rings are none, who cannot prove, and the two libraries beside each other."""

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from coincurve import PublicKey

from cyberkv.cybergraph.access.identity import RING_ORDER, Identity
from cyberkv.cybergraph.access.proof import MIN_RING_KEYS, Group, RingOr, Terms, check_ring, make_ring, native_or_plain
from cyberkv.cybergraph.access.proof.group_native import NativeGroup
from cyberkv.cybergraph.access.proof.group_plain import PlainGroup
from cyberkv.cybergraph.errors import MalformedNode, ProofRejected
from cyberkv.cybergraph.limits import MAX_RING_KEYS
from cyberkv.cybergraph.nodes import Ring
from fixtures.proofs import PROVER, RING, RING_SECRETS, TERMS, challenge

GROUPS: tuple[Group, ...] = (NativeGroup(), PlainGroup())
NATIVE = RingOr(NativeGroup())
ASKED = challenge(NATIVE.id)
SECRET = RING_SECRETS[PROVER].to_bytes(32, "big")
FIELD = 2**256 - 2**32 - 977
every_group = pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)


def ring_terms(ring: Ring) -> Terms:
    return replace(TERMS, ring=ring, ring_cid=ring.cid())


def point(x: int, sign: int = 2) -> bytes:
    return bytes((sign,)) + x.to_bytes(32, "big")


def refused(reason: str, work: Callable[[], object]) -> None:
    with pytest.raises(ProofRejected) as caught:
        work()
    assert (caught.value.data["reason"], caught.value.data["scheme"]) == (reason, NATIVE.id)


@pytest.mark.parametrize("size", [0, 1, 2, MIN_RING_KEYS - 1, MAX_RING_KEYS + 1])
def test_a_ring_that_hides_too_little_or_costs_too_much_is_none(size: int) -> None:
    ring = Ring(tuple(sorted(point(at + 1) for at in range(size))))
    for work in (lambda: check_ring(ring), lambda: make_ring(ring.keys), lambda: ring_terms(ring)):
        with pytest.raises(MalformedNode):
            work()


def test_control_the_smallest_and_the_largest_ring() -> None:
    for size in (MIN_RING_KEYS, MAX_RING_KEYS):
        ring = Ring(tuple(sorted(point(at + 1) for at in range(size))))
        check_ring(ring)
        assert Ring.decode(ring.encode(), verify=ring.cid()) == ring


@pytest.mark.parametrize(
    "change",
    [
        lambda keys: keys[::-1],
        lambda keys: (keys[1], keys[0], *keys[2:]),
        lambda keys: (*keys, keys[-1]),
        lambda keys: (keys[0], *keys),
        lambda keys: (*keys[:-1], keys[-1][:-1]),
        lambda keys: (*keys[:-1], keys[-1] + b"\0"),
        lambda keys: (*keys[:-1], b"\x04" + bytes(64)),
        lambda keys: (*keys[:-1], 7),
    ],
    ids=["reversed", "permuted", "last twice", "first twice", "short key", "long key", "uncompressed", "no bytes"],
)
def test_another_form_of_the_same_ring_is_refused(change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> None:
    changed = Ring(change(RING.keys))
    with pytest.raises(MalformedNode):
        check_ring(changed)
    with pytest.raises(MalformedNode):
        replace(TERMS, ring=changed)
    check_ring(RING)


def test_a_ring_is_made_in_its_one_form() -> None:
    assert make_ring(reversed(RING.keys)) == make_ring(RING.keys[2:] + RING.keys[:2]) == RING
    with pytest.raises(MalformedNode):
        make_ring((*RING.keys, RING.keys[0]))


def test_only_the_ring_of_the_grant_is_used() -> None:
    others = make_ring(RING.keys[1:]), make_ring((*RING.keys, point(1))), make_ring((*RING.keys[1:], point(1)))
    proof = NATIVE.prove(ASKED, TERMS, SECRET)
    assert NATIVE.verify(ASKED, TERMS, proof).ok
    for other in others:
        refused("wrong-ring", lambda other=other: replace(TERMS, ring=other))
        assert NATIVE.verify(ASKED, ring_terms(other), proof).reason == "bad-proof"
    refused("wrong-ring", lambda: replace(TERMS, ring_cid=None))
    refused("no-ring", lambda: NATIVE.prove(ASKED, replace(TERMS, ring=None), SECRET))
    refused("no-ring", lambda: NATIVE.verify(ASKED, replace(TERMS, ring=None), b""))


def test_the_ring_is_in_the_statement_by_its_cid() -> None:
    for ring in (RING, make_ring((*RING.keys[1:], point(1)))):
        assert NATIVE.statement(ASKED, ring_terms(ring)).endswith(ring.cid())


@every_group
def test_who_is_not_in_the_ring_cannot_prove(group: Group) -> None:
    scheme = RingOr(group)
    for secret in (7, RING_SECRETS[0] + 1, RING_ORDER - RING_SECRETS[0]):  # the last has the same x
        refused("not-a-member", lambda secret=secret: scheme.prove(ASKED, TERMS, secret.to_bytes(32, "big")))
    for padded in (b"\0" + SECRET, SECRET + b"\0"):
        refused("not-a-member", lambda padded=padded: scheme.prove(ASKED, TERMS, padded))
    for size_bytes in (0, 31, 32, 33):  # of 32 bytes, zero is no secret
        refused("not-a-member", lambda size_bytes=size_bytes: scheme.prove(ASKED, TERMS, bytes(size_bytes)))
    for secret in (RING_ORDER, RING_ORDER + RING_SECRETS[0]):
        refused("not-a-member", lambda secret=secret: scheme.prove(ASKED, TERMS, (secret % 2**256).to_bytes(32, "big")))


@every_group
def test_zero_and_scalars_from_the_order_on_are_refused(group: Group) -> None:
    scheme = RingOr(group)
    proof = scheme.prove(ASKED, TERMS, SECRET)
    for at in range(0, len(proof), 32):
        for scalar in (0, RING_ORDER, 2**256 - 1):
            changed = proof[:at] + scalar.to_bytes(32, "big") + proof[at + 32 :]
            assert scheme.verify(ASKED, TERMS, changed).reason == "bad-proof"


def test_a_scalar_is_not_taken_in_a_second_form(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(range(1, 2 * len(RING.keys) + 1))  # small enough that adding the order still fits 32 bytes
    monkeypatch.setattr(f"{RingOr.__module__}._draw", lambda count, *_: [next(drawn) for _ in range(count)])
    proof = NATIVE.prove(ASKED, TERMS, SECRET)
    assert NATIVE.verify(ASKED, TERMS, proof).ok
    first = int.from_bytes(proof[:32], "big")
    assert first < 2**256 - RING_ORDER
    shifted = (first + RING_ORDER).to_bytes(32, "big") + proof[32:]
    assert NATIVE.verify(ASKED, TERMS, shifted).reason == "bad-proof"
    last = proof[-32:].lstrip(b"\0")
    assert len(last) == 1
    assert NATIVE.verify(ASKED, TERMS, proof[:-32] + last).reason == "bad-proof"


@every_group
def test_a_pair_with_zero_is_refused_though_its_equation_holds(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    size, plain = len(RING.keys), RingOr(PlainGroup())
    own = RING.keys.index(plain.group.public_key(RING_SECRETS[PROVER]))
    other = (own + 1) % size
    proofs = []
    for c in (0, 1):
        drawn = [7] * (2 * size)
        drawn[other] = c
        monkeypatch.setattr(f"{RingOr.__module__}._draw", lambda *_, drawn=drawn: drawn)
        proofs.append(plain.prove(ASKED, TERMS, SECRET))
    assert proofs[0][64 * other :][:32] == bytes(32)
    second_form = proofs[0][: 64 * other] + RING_ORDER.to_bytes(32, "big") + proofs[0][64 * other + 32 :]
    taken = [RingOr(group).verify(ASKED, TERMS, proof).ok for proof in (proofs[0], second_form, proofs[1])]
    assert taken == [False, False, True]


@every_group
def test_a_commitment_that_is_the_neutral_point_is_refused_by_both(group: Group) -> None:
    with pytest.raises(ValueError, match=r"neutral|invalid"):
        group.commitment(group.public_key(7), 3, 21)
    assert len(group.commitment(group.public_key(7), 3, 22)) == 33


@every_group
def test_doubling_inside_the_sum_is_right(group: Group) -> None:
    assert group.commitment(group.public_key(1), RING_ORDER - 5, 5) == group.public_key(10)
    assert group.commitment(group.public_key(RING_ORDER - 1), 5, 5) == group.public_key(10)


NO_POINTS = {
    "x at the field's size": point(FIELD),
    "x above it, of a point below": point(FIELD + 1),
    "largest x": point(2**256 - 1),
    "no y": point(5),
    "neutral": bytes(33),
    "other sign": point(1, 4),
    "sign 0": point(1, 0),
    "hybrid sign": point(1, 6),
    "uncompressed": PublicKey(point(1)).format(compressed=False),
    "short": point(1)[:-1],
    "long": point(1) + b"\0",
    "empty": b"",
}


@every_group
@pytest.mark.parametrize("name", NO_POINTS)
def test_points_are_read_strictly(group: Group, name: str) -> None:
    key = NO_POINTS[name]
    assert not group.is_point(key)
    with pytest.raises(ValueError, match=r"point|invalid"):
        group.commitment(key, 1, 1)


@every_group
def test_control_points_are_read(group: Group) -> None:
    assert group.is_point(point(1))
    assert group.is_point(point(1, 3))


@every_group
def test_a_ring_with_a_key_that_is_no_point(group: Group) -> None:
    keys = tuple(sorted((*RING.keys, point(5))))
    with pytest.raises(MalformedNode) as caught:
        make_ring(keys, group=group)
    assert caught.value.data["reason"].startswith(f"key {keys.index(point(5))} ")
    terms, scheme = ring_terms(Ring(keys)), RingOr(group)
    refused("wrong-ring", lambda: scheme.prove(ASKED, terms, SECRET))
    assert scheme.verify(ASKED, terms, bytes((1,)) * (64 * len(keys))).reason == "bad-proof"


def test_the_ring_key_of_an_identity_proves() -> None:
    people = [Identity(bytes((at,)) * 32) for at in range(4)]
    terms = ring_terms(make_ring(person.public().ring for person in people))
    for person in people:
        proof = NATIVE.prove(ASKED, terms, person.ring_scalar.to_bytes(32, "big"))
        assert NATIVE.verify(ASKED, terms, proof).claims == {f"one-of-ring:{terms.ring_cid}"}
    stranger = Identity(bytes(31) + b"\x09")
    refused("not-a-member", lambda: NATIVE.prove(ASKED, terms, stranger.ring_scalar.to_bytes(32, "big")))


def test_without_coincurve_the_other_library_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_or_plain().name == "coincurve"
    real = builtins.__import__

    def without(
        name: str,
        globals_: Mapping[str, object] | None = None,
        locals_: Mapping[str, object] | None = None,
        names: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if name in ("coincurve", "group_native"):
            raise ImportError(name)
        return real(name, globals_, locals_, names, level)

    monkeypatch.setattr(builtins, "__import__", without)
    assert native_or_plain().name == "py_ecc"
    proof = RingOr().prove(ASKED, TERMS, SECRET)
    monkeypatch.undo()
    assert NATIVE.verify(ASKED, TERMS, proof).ok


def test_the_bound_on_recursion_stands_though_py_ecc_lifts_it() -> None:
    assert PlainGroup().name == "py_ecc"
    assert sys.getrecursionlimit() < 100_000
