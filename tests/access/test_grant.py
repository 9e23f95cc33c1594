"""Grants: who can open one, who cannot, and what no reader can be made to believe."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.access import ContentKey, Identity, PublicIdentity, check_grant, commits, make_grant, open_grant
from cyberkv.cybergraph.access import grant as grant_module
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    AuthFailed,
    BadKey,
    BadSignature,
    Corrupt,
    LimitExceeded,
    MalformedNode,
    NotARecipient,
)
from cyberkv.cybergraph.limits import MAX_WRAPS
from cyberkv.cybergraph.nodes import Grant
from tests.access.sealed import ISSUER, KEY, LINEAGE, OTHER, READER

ROOT = Cid.of(b"manifest", "raw", "sha2-256")


def grant(
    *readers: Identity, key: ContentKey = KEY, epoch: int = 1, root: Cid = ROOT, issuer: Identity = ISSUER
) -> Grant:
    public = [reader.public() for reader in readers]
    return make_grant(issuer, key, public, lineage=LINEAGE, epoch=epoch, root=root, alg=1)


def signed(changed: Grant, issuer: Identity = ISSUER) -> Grant:
    return replace(changed, signature=issuer.signing.sign(changed.body()))


def test_readers_and_the_issuer_open_it_and_nobody_else() -> None:
    made = grant(READER)
    assert open_grant(made, READER) == KEY
    assert open_grant(made, ISSUER) == KEY
    with pytest.raises(NotARecipient) as caught:
        open_grant(made, OTHER)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(("count", "wraps"), [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8), (100, 128)])
def test_the_number_of_wraps_is_a_power_of_two_and_names_nobody(count: int, wraps: int) -> None:
    readers = [Identity(bytes([100, number]) * 16) for number in range(count)]
    made = grant(*readers)
    assert len(made.wraps) == wraps
    assert {len(wrap) for wrap in made.wraps} == {80}
    data = made.encode()
    for reader in readers:
        public = reader.public()
        assert not any(part in data for part in (public.sealing, public.signing, public.ring))
    assert all(open_grant(made, reader) == KEY for reader in readers[-2:])


def test_a_reader_named_twice_has_one_wrap() -> None:
    assert len(grant(READER, READER, ISSUER).wraps) == 2


def test_the_order_of_wraps_is_drawn() -> None:
    places = {next(i for i, wrap in enumerate(grant(READER, OTHER).wraps) if opens(wrap)) for _ in range(40)}
    assert len(places) > 1


def opens(wrap: bytes) -> bool:
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
    made = grant(READER)
    return grant_module._unwrap(suite, wrap, READER.sealing, grant_module._info(made)) is not None


def test_every_wrap_is_tried_whichever_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grant(READER, OTHER)
    tried: list[bytes] = []
    unwrap = grant_module._unwrap
    monkeypatch.setattr(grant_module, "_unwrap", lambda *given: tried.append(given[1]) or unwrap(*given))
    open_grant(made, READER)
    assert tried == list(made.wraps)


def test_keys_that_withstand_quantum_computers() -> None:
    made = make_grant(
        ISSUER, KEY, [READER.public(pq=True)], lineage=LINEAGE, epoch=1, root=ROOT, alg=1, kem="mlkem768-x25519"
    )
    assert {len(wrap) for wrap in made.wraps} == {1168}
    assert open_grant(made, READER) == KEY
    with pytest.raises(NotARecipient):
        open_grant(made, OTHER)
    with pytest.raises(BadKey):  # the short form of a key has no such part
        make_grant(ISSUER, KEY, [READER.public()], lineage=LINEAGE, epoch=1, root=ROOT, alg=1, kem="mlkem768-x25519")


FIELDS = {
    "issuer": OTHER.public().signing, "lineage": bytes(16), "epoch": 2, "root": Cid.of(b"", "raw", "sha2-256"),
    "prev": Cid.of(b"", "dag-cbor", "sha2-256"), "alg": 2, "commitment": bytes(32), "access": OTHER.public().signing,
    "ring": Cid.of(b"", "dag-cbor", "sha2-256"), "wraps": (bytes(80), bytes(80)),
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_the_signature_covers_every_field(field: str) -> None:
    with pytest.raises(BadSignature):
        check_grant(replace(grant(READER), **{field: FIELDS[field]}))


@given(st.data())
def test_a_flipped_bit_is_refused(data: st.DataObject) -> None:
    made = bytearray(GRANT_BYTES)
    at = data.draw(st.integers(0, len(made) * 8 - 1))
    made[at // 8] ^= 1 << at % 8
    with pytest.raises((Corrupt, BadKey)):
        check_grant(Grant.decode(bytes(made)))


GRANT_BYTES = grant(READER).encode()


def test_a_wrap_in_another_grant_does_not_open() -> None:
    made = grant(READER)
    mallory = Identity(bytes([9]) * 32)
    lifted = signed(replace(made, issuer=mallory.public().signing), mallory)
    check_grant(lifted)
    with pytest.raises(NotARecipient):
        open_grant(lifted, READER)
    for field in ("lineage", "epoch", "root", "commitment"):
        with pytest.raises(NotARecipient):
            open_grant(signed(replace(made, **{field: FIELDS[field]})), READER)


def test_an_issuer_who_wraps_another_key_is_caught() -> None:
    other = ContentKey(bytes(32))
    made = grant(READER, key=other)
    lie = replace(made, commitment=KEY.commitment(made.issuer, LINEAGE, 1))
    with pytest.raises(NotARecipient):  # the wrap is bound to the commitment
        open_grant(signed(lie), READER)
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
    honest = grant(READER)
    wraps = (
        suite.encrypt(other.reveal(), READER.sealing.public_key(), grant_module._info(honest)),
        suite.encrypt(KEY.reveal(), OTHER.sealing.public_key(), grant_module._info(honest)),
    )
    lie = signed(replace(honest, wraps=wraps))
    assert open_grant(lie, OTHER) == KEY
    with pytest.raises(AuthFailed):
        open_grant(lie, READER)


def test_a_revoked_reader_opens_the_epochs_before() -> None:
    second = ContentKey(bytes([7]) * 32)
    before, after = grant(READER, OTHER), grant(OTHER, key=second, epoch=2)
    assert open_grant(before, READER) == KEY
    assert open_grant(after, OTHER) == second
    with pytest.raises(NotARecipient):
        open_grant(after, READER)
    assert not commits(after, KEY)


SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def test_the_library_alone_believes_the_neutral_point() -> None:
    """What the check is for: one signature that fits every message."""
    forged = bytes.fromhex(SMALL_ORDER[0]) + bytes(32)
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(SMALL_ORDER[0])).verify(forged, b"anything")


@pytest.mark.parametrize("key", SMALL_ORDER)
@pytest.mark.parametrize("field", ["issuer", "access"])
def test_keys_that_prove_nothing_are_refused(key: str, field: str) -> None:
    made = replace(grant(READER), **{field: bytes.fromhex(key)})
    forged = replace(made, signature=bytes.fromhex(SMALL_ORDER[0]) + bytes(32))
    with pytest.raises(BadKey if field == "issuer" else (BadKey, BadSignature)):
        check_grant(forged)
    with pytest.raises(BadKey):
        check_grant(signed(made) if field == "access" else forged)


@pytest.mark.parametrize("low", [bytes(32), bytes([1]) + bytes(31)])
def test_a_reader_whose_key_is_of_low_order_is_refused(low: bytes) -> None:
    public = READER.public()
    with pytest.raises(BadKey):
        make_grant(ISSUER, KEY, [replace(public, sealing=low)], lineage=LINEAGE, epoch=1, root=ROOT, alg=1)


def test_numbers_of_wraps_that_are_not_written_are_refused() -> None:
    made = grant(READER, OTHER)
    for wraps in (made.wraps[:3], (*made.wraps[:3], made.wraps[3][:-1])):
        with pytest.raises(MalformedNode):
            check_grant(signed(replace(made, wraps=wraps)))


def test_more_readers_than_a_grant_holds_are_refused() -> None:
    readers = [
        PublicIdentity(bytes(32), number.to_bytes(32, "big"), bytes(33), bytes(32)) for number in range(MAX_WRAPS)
    ]
    with pytest.raises(LimitExceeded):
        make_grant(ISSUER, KEY, readers, lineage=LINEAGE, epoch=1, root=ROOT, alg=1)
