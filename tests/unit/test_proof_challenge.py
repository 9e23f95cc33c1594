"""Asking and answering: each challenge is answered once, by the one it was meant for, about what it names."""

from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest

from cyberkv.cybergraph.access.proof import (
    DEFAULT_SCHEME,
    LIFETIME_S,
    MAX_CHALLENGE_BYTES,
    MAX_LIFETIME_S,
    MOST_OPEN_EACH,
    SCHEMES,
    SKEW_S,
    Challenge,
    Terms,
    Verifier,
    answer,
)
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import decode, encode
from cyberkv.cybergraph.errors import AccessDenied, CyberKVError, MalformedNode, ProofRejected, UnsupportedFormat
from fixtures.proofs import ACCESS_SEED, MEMBER_SEED, PROVER, RING_SECRETS, TERMS

NOW_S = 1_800_000_000
HERE = "https://gateway.example"
OTHER_GRANT, OTHER_ROOT = Cid.of(b"other", "dag-cbor", "sha2-256"), Cid.of(b"other", "raw", "sha2-256")
SECRETS = dict(zip(SCHEMES, (ACCESS_SEED, MEMBER_SEED, RING_SECRETS[PROVER].to_bytes(32, "big")), strict=True))
every_scheme = pytest.mark.parametrize("scheme", tuple(SCHEMES))


def reply(data: bytes, *, now_s: int = NOW_S, audience: str = HERE, terms: Terms = TERMS) -> bytes:
    return answer(data, terms, SECRETS, audience=audience, now_s=now_s)


def expect(reason: str, work: Callable[[], object]) -> None:
    with pytest.raises(ProofRejected) as caught:
        work()
    assert caught.value.data["reason"] == reason
    assert (caught.value.exit_code, caught.value.kind) == (6, "proof-rejected")
    assert isinstance(caught.value, AccessDenied)


def asked(scheme: str = DEFAULT_SCHEME) -> tuple[Verifier, Challenge, bytes]:
    """Give a verifier, its challenge, and a good answer not yet shown."""
    verifier = Verifier(HERE)
    challenge = verifier.issue(scheme, TERMS, now_s=NOW_S)
    return verifier, challenge, reply(challenge.encode())


@every_scheme
def test_an_answer_is_taken_once(scheme: str) -> None:
    verifier, challenge, proof = asked(scheme)
    verdict = verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S)
    assert verdict.ok
    assert len(verdict.claims) == 1
    expect("not-open", lambda: verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S))


def test_what_is_proven_is_said_and_no_more() -> None:
    claims = []
    for scheme in SCHEMES:
        verifier, challenge, proof = asked(scheme)
        claims += verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S).claims
    member, *others = TERMS.roster
    assert not others
    assert claims == ["holds-access-key", f"member:{member.hex()}", f"one-of-ring:{TERMS.ring_cid}"]


@every_scheme
def test_a_proof_for_one_nonce_is_none_for_another(scheme: str) -> None:
    verifier, challenge, proof = asked(scheme)
    other = verifier.issue(scheme, TERMS, now_s=NOW_S)
    assert replace(other, nonce=challenge.nonce) == challenge
    expect("bad-proof", lambda: verifier.check(other.encode(), proof, TERMS, now_s=NOW_S))
    assert verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S).ok


@every_scheme
def test_no_field_of_a_challenge_can_change_under_a_proof(scheme: str) -> None:
    _, challenge, proof = asked(scheme)
    changed = [
        replace(challenge, grant=OTHER_GRANT), replace(challenge, root=OTHER_ROOT), replace(challenge, audience="me"),
        replace(challenge, expires_s=challenge.expires_s + 1), replace(challenge, nonce=bytes(32)),
        *(replace(challenge, scheme=name) for name in SCHEMES if name != scheme),
    ]  # fmt: skip
    assert SCHEMES[scheme].verify(challenge, TERMS, proof).ok
    for other in changed:
        verdict = SCHEMES[scheme].verify(other, TERMS, proof)
        assert (verdict.ok, verdict.claims, verdict.reason) == (False, frozenset(), "bad-proof")


def test_a_proof_by_one_scheme_is_none_by_another() -> None:
    for scheme in SCHEMES:
        _, _, proof = asked(scheme)
        for other in {*SCHEMES} - {scheme}:
            verifier = Verifier(HERE)
            challenge = verifier.issue(other, TERMS, now_s=NOW_S)
            with pytest.raises(ProofRejected):
                verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S)


@pytest.mark.parametrize(
    ("terms", "reason"), [(replace(TERMS, grant=OTHER_GRANT), "grant"), (replace(TERMS, root=OTHER_ROOT), "root")]
)
def test_other_grant_and_other_root_are_refused_on_both_sides(terms: Terms, reason: str) -> None:
    verifier, challenge, proof = asked()
    expect(reason, lambda: reply(challenge.encode(), terms=terms))
    expect(reason, lambda: verifier.check(challenge.encode(), proof, terms, now_s=NOW_S))
    assert verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S).ok


def test_a_challenge_passed_on_is_neither_answered_nor_taken() -> None:
    _, challenge, proof = asked()
    expect("audience", lambda: reply(challenge.encode(), audience="https://middle.example"))
    expect("audience", lambda: Verifier("https://other.example").check(challenge.encode(), proof, TERMS, now_s=NOW_S))


def test_only_what_was_issued_here_is_taken() -> None:
    verifier, challenge, proof = asked()
    expect("not-open", lambda: Verifier(HERE).check(challenge.encode(), proof, TERMS, now_s=NOW_S))
    longer = replace(challenge, expires_s=NOW_S + MAX_LIFETIME_S)
    expect("not-open", lambda: verifier.check(longer.encode(), reply(longer.encode()), TERMS, now_s=NOW_S))
    assert verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S).ok


def test_the_asker_allows_nothing_on_its_own_clock() -> None:
    verifier, challenge, proof = asked()
    assert challenge.expires_s == NOW_S + LIFETIME_S
    expect("expired", lambda: verifier.check(challenge.encode(), proof, TERMS, now_s=challenge.expires_s))
    stepped_back_s = challenge.expires_s - MAX_LIFETIME_S - 1
    expect("too-far-ahead", lambda: verifier.check(challenge.encode(), proof, TERMS, now_s=stepped_back_s))
    assert verifier.check(challenge.encode(), proof, TERMS, now_s=challenge.expires_s - 1).ok


def test_the_answerer_allows_for_skew_and_no_more() -> None:
    _, challenge, proof = asked()
    late_s = challenge.expires_s + SKEW_S
    early_s = challenge.expires_s - MAX_LIFETIME_S - SKEW_S
    assert reply(challenge.encode(), now_s=late_s - 1) == reply(challenge.encode(), now_s=early_s) == proof
    expect("expired", lambda: reply(challenge.encode(), now_s=late_s))
    expect("too-far-ahead", lambda: reply(challenge.encode(), now_s=early_s - 1))


def test_a_reader_answers_only_by_the_schemes_it_chose() -> None:
    data = Verifier(HERE).issue("member-sig/ed25519/1", TERMS, now_s=NOW_S).encode()
    only_default = {DEFAULT_SCHEME: ACCESS_SEED}
    expect("not-answered", lambda: answer(data, TERMS, only_default, audience=HERE, now_s=NOW_S))
    assert reply(data)


@pytest.mark.parametrize("name", ["none", "", "access-sig/ed25519/2", "Access-Sig/ed25519/1", "stark/1"])
def test_an_unknown_scheme_is_refused_everywhere(name: str) -> None:
    verifier, challenge, proof = asked()
    data = replace(challenge, scheme=name).encode()
    for work in (
        lambda: verifier.issue(name, TERMS, now_s=NOW_S),
        lambda: reply(data),
        lambda: verifier.check(data, proof, TERMS, now_s=NOW_S),
        lambda: verifier.check(data, b"", TERMS, now_s=NOW_S),
        lambda: SCHEMES[name],
    ):
        expect("unknown-scheme", work)


@every_scheme
def test_an_oversized_proof_is_refused_before_it_is_looked_at(scheme: str) -> None:
    verifier, challenge, proof = asked(scheme)
    too_long = proof + bytes(SCHEMES[scheme].max_proof_bytes + 1 - len(proof))
    expect("too-large", lambda: verifier.check(challenge.encode(), too_long, TERMS, now_s=NOW_S))
    assert verifier.open_count == 1  # not spent: nothing was verified
    assert verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S).ok


@every_scheme
@pytest.mark.parametrize("change", [lambda proof: b"", lambda proof: proof[:-1], lambda proof: bytes(len(proof))])
def test_a_wrong_proof_spends_the_challenge(scheme: str, change: Callable[[bytes], bytes]) -> None:
    verifier, challenge, proof = asked(scheme)
    expect("bad-proof", lambda: verifier.check(challenge.encode(), change(proof), TERMS, now_s=NOW_S))
    expect("not-open", lambda: verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S))


def test_every_flipped_bit_of_a_challenge_is_refused_on_both_sides() -> None:
    verifier, challenge, proof = asked()
    data = challenge.encode()
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(CyberKVError):
            verifier.check(bytes(flipped), proof, TERMS, now_s=NOW_S)
    assert verifier.check(data, proof, TERMS, now_s=NOW_S).ok


@pytest.mark.parametrize("data", [b"", b"\xa0", b"\x80", bytes(40), encode({"type": "cyberkv/challenge"})])
def test_what_is_no_challenge_is_refused(data: bytes) -> None:
    for work in (lambda: reply(data), lambda: Verifier(HERE).check(data, b"", TERMS, now_s=NOW_S)):
        with pytest.raises(CyberKVError):
            work()


def test_strict_fields() -> None:
    _, challenge, _ = asked()
    fields = decode(challenge.encode())
    assert isinstance(fields, dict)
    wrong = {
        "nonce": bytes(31), "expires_s": -1, "grant": OTHER_ROOT, "root": OTHER_GRANT, "extra": 1,
        "audience": "a" * 257, "scheme": "s" * 65, "type": "cyberkv/challenged", "version": 0,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(MalformedNode):
            Challenge.decode(encode(fields | {name: value}))
    with pytest.raises(UnsupportedFormat):
        Challenge.decode(encode(fields | {"version": 2}))
    assert Challenge.decode(encode(fields)) == challenge


def test_a_long_challenge_is_refused_unread_and_the_longest_is_shorter() -> None:
    longest = replace(asked()[1], scheme="s" * 64, audience="a" * 256, expires_s=(1 << 63) - 1)
    assert len(longest.encode()) <= MAX_CHALLENGE_BYTES
    expect("unknown-scheme", lambda: reply(longest.encode()))
    for work in (reply, lambda data: Verifier(HERE).check(data, b"", TERMS, now_s=NOW_S)):
        expect("too-large", lambda work=work: work(bytes(MAX_CHALLENGE_BYTES + 1)))


def test_memory_is_bounded_and_forgetting_means_refusing() -> None:
    verifier = Verifier(HERE, max_open=2)
    first, second, third = (verifier.issue(DEFAULT_SCHEME, TERMS, now_s=NOW_S).encode() for _ in range(3))
    assert verifier.open_count == 2
    expect("not-open", lambda: verifier.check(first, reply(first), TERMS, now_s=NOW_S))
    assert verifier.check(second, reply(second), TERMS, now_s=NOW_S).ok
    assert verifier.check(third, reply(third), TERMS, now_s=NOW_S).ok
    assert verifier.open_count == 0


def test_expired_challenges_are_dropped_when_the_next_is_issued() -> None:
    verifier = Verifier(HERE)
    for _ in range(5):
        verifier.issue(DEFAULT_SCHEME, TERMS, now_s=NOW_S)
    verifier.issue(DEFAULT_SCHEME, TERMS, now_s=NOW_S + LIFETIME_S - 1)
    assert verifier.open_count == 6
    verifier.issue(DEFAULT_SCHEME, TERMS, now_s=NOW_S + LIFETIME_S)
    assert verifier.open_count == 2


def test_one_asker_leaves_room_for_others_and_nothing_stays_behind() -> None:
    verifier = Verifier(HERE, max_open=3 * MOST_OPEN_EACH)

    def issue(asker: str | None, now_s: int = NOW_S) -> Challenge:
        return verifier.issue(DEFAULT_SCHEME, TERMS, now_s=now_s, asker=asker)

    mine = [issue("me", NOW_S + at // 32) for at in range(MOST_OPEN_EACH)]
    for now_s in (NOW_S + 1, NOW_S + LIFETIME_S - 1):
        with pytest.raises(ProofRejected) as caught:
            issue("me", now_s)
        assert (caught.value.data["reason"], caught.value.data["retry_s"]) == ("too-many", NOW_S + LIFETIME_S - now_s)
    data = mine[-1].encode()
    assert verifier.check(data, reply(data, now_s=NOW_S + 1), TERMS, now_s=NOW_S + 1).ok
    issue("me", NOW_S + 1)  # what is answered waits no more
    for at in range(10_000):
        issue(f"stranger {at}", NOW_S + 1)
    assert verifier.open_count == 3 * MOST_OPEN_EACH
    assert len(verifier._each) == 3 * MOST_OPEN_EACH
    expect("not-open", lambda: verifier.check(mine[0].encode(), reply(mine[0].encode()), TERMS, now_s=NOW_S))
    issue(None, NOW_S + 2 * LIFETIME_S)
    assert (verifier.open_count, verifier._each) == (1, {})
    for _ in range(2 * MOST_OPEN_EACH):
        issue(None)  # who is not counted


def test_of_many_threads_with_one_answer_one_is_let_in() -> None:
    verifier, challenge, proof = asked()
    taken: list[bool] = []

    def show() -> None:
        try:
            taken.append(verifier.check(challenge.encode(), proof, TERMS, now_s=NOW_S).ok)
        except ProofRejected:
            taken.append(False)

    threads = [Thread(target=show) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * 7 + [True]


def test_messages_hold_no_secret_and_no_control_characters() -> None:
    _, challenge, _ = asked()
    with pytest.raises(ProofRejected) as caught:
        reply(replace(challenge, scheme="\x1b[2J").encode())
    assert "\x1b" not in str(caught.value)
    for secret in SECRETS.values():
        assert secret.hex() not in repr((caught.value, caught.value.data))
