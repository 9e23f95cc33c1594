"""Proof of access: making and judging one, by each scheme; ring proofs by each library, in one run.

A ring proof hides the reader among all members of the ring, and its cost grows with them. The schemes that sign
are the peer: they hide less or nothing, and cost the same for any number of readers.
"""

from collections.abc import Sequence
from functools import partial

from cyberkv.cybergraph.access.proof import AccessSig, Challenge, MemberSig, ProofScheme, RingOr, Terms, make_ring
from cyberkv.cybergraph.access.proof.group_native import NativeGroup
from cyberkv.cybergraph.access.proof.group_plain import PlainGroup
from cyberkv.cybergraph.access.proof.signing import public_key
from cyberkv.cybergraph.cid import Cid

from .common import Claim, best_s, options, report

GRANT, ROOT = Cid.of(b"grant", "dag-cbor", "sha2-256"), Cid.of(b"root", "raw", "sha2-256")
SECRET = bytes(range(32))


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    readers = 10 if args.quick else 100
    native, plain = NativeGroup(), PlainGroup()
    scalar = int.from_bytes(SECRET, "big")
    ring = make_ring(native.public_key(scalar + at) for at in range(readers))
    signer = public_key(SECRET)
    terms = Terms(GRANT, ROOT, signer, ring_cid=ring.cid(), ring=ring, roster=frozenset({signer}))

    def measure_ms(scheme: ProofScheme, repeats: int) -> tuple[float, float, int]:
        challenge = Challenge(scheme=scheme.id, grant=GRANT, root=ROOT, audience="bench", expires_s=1, nonce=bytes(32))
        proof = scheme.prove(challenge, terms, SECRET)
        assert scheme.verify(challenge, terms, proof).ok
        prove_s = best_s(partial(scheme.prove, challenge, terms, SECRET), repeats)
        verify_s = best_s(partial(scheme.verify, challenge, terms, proof), repeats)
        return prove_s * 1e3, verify_s * 1e3, len(proof)

    many, few = (3, 1) if args.quick else (50, 5)
    native_prove, native_verify, proof_bytes = measure_ms(RingOr(native), many)
    plain_prove, plain_verify, _ = measure_ms(RingOr(plain), few)
    figures = {"readers in the ring": float(readers), "ring proof, bytes": float(proof_bytes)}
    for scheme in (AccessSig(), MemberSig()):
        prove, verify, _ = measure_ms(scheme, many)
        figures |= {f"{scheme.id} prove, ms": prove, f"{scheme.id} verify, ms": verify}
    claims = [
        Claim(f"ring of {readers}, coincurve: prove", native_prove, 20, unit="ms", at_most=True),
        Claim(f"ring of {readers}, coincurve: verify", native_verify, 20, unit="ms", at_most=True),
        Claim(f"ring of {readers}, py_ecc: prove", plain_prove, 1000, unit="ms", at_most=True),
        Claim(f"ring of {readers}, py_ecc: verify", plain_verify, 1000, unit="ms", at_most=True),
    ]
    return report(args, "Proof of access", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
