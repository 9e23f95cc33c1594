"""Proofs of access against fixed vectors, the ring proof also by arithmetic of its own."""

import hashlib
import json
from typing import Any

import pytest

from cyberkv.cybergraph.access.proof import SCHEMES, Challenge, Group, RingOr
from cyberkv.cybergraph.access.proof.group_native import NativeGroup
from cyberkv.cybergraph.access.proof.group_plain import PlainGroup
from cyberkv.cybergraph.nodes import Ring
from fixtures.make import FOLDER
from fixtures.proofs import TERMS, challenge, ring_proof

VECTORS: dict[str, Any] = json.loads((FOLDER / "proofs.json").read_text())
P = 2**256 - 2**32 - 977
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
BASE = bytes.fromhex("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
Affine = tuple[int, int] | None


def test_there_is_a_vector_of_every_scheme() -> None:
    assert set(VECTORS) == set(SCHEMES)


@pytest.mark.parametrize("name", VECTORS)
def test_challenge_statement_and_proof(name: str) -> None:
    vector, scheme = VECTORS[name], SCHEMES[name]
    asked = Challenge.decode(bytes.fromhex(vector["challenge"]))
    assert asked == challenge(name)
    assert scheme.statement(asked, TERMS).hex() == vector["statement"]
    assert scheme.verify(asked, TERMS, bytes.fromhex(vector["proof"])).ok


@pytest.mark.parametrize("name", VECTORS)
def test_a_statement_is_four_framed_parts(name: str) -> None:
    data, parts = bytes.fromhex(VECTORS[name]["statement"]), []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        parts.append(data[4:end])
        data = data[end:]
    assert parts[:3] == [b"cyberkv/proof/v1", name.encode(), bytes.fromhex(VECTORS[name]["challenge"])]
    bound = {"access": TERMS.access_key, "member": b"", "ring": TERMS.ring_cid}
    assert parts[3:] == [bound[name.split("-", maxsplit=1)[0]]]


@pytest.mark.parametrize("group", [NativeGroup(), PlainGroup()], ids=lambda group: group.name)
def test_with_the_same_randomness_each_library_gives_the_vector(group: Group) -> None:
    assert ring_proof(RingOr(group)).hex() == VECTORS["ring-or/secp256k1/1"]["proof"]


def test_the_ring_vector_verifies_by_the_equations_alone() -> None:
    vector = VECTORS["ring-or/secp256k1/1"]
    keys = Ring.decode(bytes.fromhex(vector["ring"])).keys
    statement, proof = bytes.fromhex(vector["statement"]), bytes.fromhex(vector["proof"])
    scalars = [int.from_bytes(proof[at : at + 32], "big") for at in range(0, len(proof), 32)]
    hashed = b"".join(len(part).to_bytes(4, "big") + part for part in (b"cyberkv/proof/ring-or/hash/1", statement))
    for key, c, z in zip(keys, scalars[::2], scalars[1::2], strict=True):
        hashed += (33).to_bytes(4, "big") + packed(add(times(z, unpacked(BASE)), times(ORDER - c, unpacked(key))))
    assert sum(scalars[::2]) % ORDER == int.from_bytes(hashlib.sha512(hashed).digest(), "big") % ORDER
    assert packed(times(int(vector["secret"], 16), unpacked(BASE))) in keys


def unpacked(key: bytes) -> Affine:
    x = int.from_bytes(key[1:], "big")
    y = pow(x**3 + 7, (P + 1) // 4, P)
    return x, y if y % 2 == key[0] % 2 else P - y


def packed(point: Affine) -> bytes:
    assert point is not None
    return bytes((2 + point[1] % 2,)) + point[0].to_bytes(32, "big")


def add(a: Affine, b: Affine) -> Affine:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and a[1] != b[1]:
        return None
    rise, run = (3 * a[0] ** 2, 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = rise * pow(run, -1, P) % P
    x = (slope**2 - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def times(scalar: int, point: Affine) -> Affine:
    total: Affine = None
    for bit in f"{scalar:b}":
        total = add(total, total)
        if bit == "1":
            total = add(total, point)
    return total
