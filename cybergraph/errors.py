"""The error tree of CyberKV.

    CyberKVError                     exit  kind
    |- BadReference (ValueError)        2  bad-reference
    |- CacheDiscontinuity (IndexError)  1  cache-discontinuity
    |- OutOfRange (IndexError)          2  out-of-range
    |- NotFound (KeyError)              3  not-found
    |  |- BlockNotFound                 3  block-not-found
    |  `- NameNotFound                  3  name-not-found
    |- Corrupt (ValueError)             4  corrupt
    |  |- DigestMismatch                4  digest-mismatch
    |  |- AuthFailed                    4  auth-failed
    |  |- BadSignature                  4  bad-signature
    |  |- NotFinite                     4  not-finite
    |  |- MalformedBytes                4  malformed
    |  |  |- MalformedCid               4  malformed-cid
    |  |  |- MalformedCbor              4  malformed-cbor
    |  |  |- MalformedJson              4  malformed-json
    |  |  |- MalformedNode              4  malformed-node
    |  |  |- MalformedCar               4  malformed-car
    |  |  `- TruncatedCar               4  truncated-car
    |  `- LimitExceeded                 4  limit-exceeded
    |- Refused (PermissionError)        5  refused
    |  |- IdentityMismatch              5  identity-mismatch
    |  |- NotPublic                     5  not-public
    |  |- UnsupportedModel              5  unsupported-model
    |  |- UnsafeNumerics                5  unsafe-numerics
    |  |- UnsupportedFormat             5  unsupported-format
    |  `- Untrusted                     5  untrusted
    |- AccessDenied (PermissionError)   6  access-denied
    |  |- BadKey                        6  bad-key
    |  |- NotARecipient                 6  not-a-recipient
    |  `- ProofRejected                 6  proof-rejected
    |- PeerError (ConnectionError)      7  peer
    |  |- PeerUnreachable               7  peer-unreachable
    |  |- PeerMisbehaved                7  peer-misbehaved
    |  |- NotOffered                    7  not-offered
    |  `- RpcFailed                     7  rpc-failed
    `- TierFull (OSError)               8  full

Each class also inherits the builtin it refines, carries its data as attributes, and may carry a hint: what to do next.
"""

from typing import ClassVar


class CyberKVError(Exception):
    """Base of every error this project raises on purpose.

    `data` is JSON-ready and appears beside the message in `--json` output; `hint` says what to do next.
    """

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return self.message


class BadReference(CyberKVError, ValueError):
    """A name or reference that cannot be used: ambiguous, or of a form that is not allowed."""

    exit_code = 2
    kind = "bad-reference"


class CacheDiscontinuity(CyberKVError, IndexError):
    """Rows that do not follow those a live cache has, a fault of the program. Data: `layer`, `expected`, `got`."""

    kind = "cache-discontinuity"


class OutOfRange(CyberKVError, IndexError):
    """A position, length or token beyond what the conversation or the model has."""

    exit_code = 2
    kind = "out-of-range"


class NotFound(CyberKVError, KeyError):
    """Something named is not here."""

    exit_code = 3
    kind = "not-found"


class BlockNotFound(NotFound):
    """No block with this CID in the store or at the peer."""

    kind = "block-not-found"


class NameNotFound(NotFound):
    """No conversation or model with this name, CID or CID prefix."""

    kind = "name-not-found"


class Corrupt(CyberKVError, ValueError):
    """Bytes that are not what they claim to be."""

    exit_code = 4
    kind = "corrupt"


class DigestMismatch(Corrupt):
    """Bytes that do not hash to their CID."""

    kind = "digest-mismatch"


class AuthFailed(Corrupt):
    """Sealed bytes that do not open: changed, moved to another place, or sealed under another key."""

    kind = "auth-failed"


class BadSignature(Corrupt):
    """A signature that the key it names did not make over these bytes."""

    kind = "bad-signature"


class NotFinite(Corrupt):
    """Keys or values that are no finite numbers, in sound bytes. Data: `field`, `got`, and where."""

    kind = "not-finite"


class MalformedBytes(Corrupt):
    """Bytes outside their format."""

    kind = "malformed"


class MalformedCid(MalformedBytes):
    """Not one of the four CID forms this project uses."""

    kind = "malformed-cid"


class MalformedCbor(MalformedBytes):
    """Not canonical dag-cbor; `offset` says where."""

    kind = "malformed-cbor"


class MalformedJson(MalformedBytes):
    """Not canonical dag-json; `reason` says why."""

    kind = "malformed-json"


class MalformedNode(MalformedBytes):
    """Canonical dag-cbor that is not a valid node; `field` says which part."""

    kind = "malformed-node"


class MalformedCar(MalformedBytes):
    """Not a CARv1 stream; `offset` says where."""

    kind = "malformed-car"


class TruncatedCar(MalformedBytes):
    """A CAR stream that ends inside a section or before its root's closure is complete."""

    kind = "truncated-car"


class LimitExceeded(Corrupt):
    """A size, depth or count over its bound in `limits`."""

    kind = "limit-exceeded"


class Refused(CyberKVError, PermissionError):
    """Allowed by the bytes, refused by policy or identity."""

    exit_code = 5
    kind = "refused"


class IdentityMismatch(Refused):
    """Two model identities differ; `field`, `expected` and `got` name the first axis."""

    kind = "identity-mismatch"


class NotPublic(Refused):
    """Publishing was not asked for explicitly."""

    kind = "not-public"


class UnsupportedModel(Refused):
    """A model this runtime would compute wrongly; `field` and `got` name the reason."""

    kind = "unsupported-model"


class UnsafeNumerics(Refused):
    """The canonical rule does not hold in this setting, or a number is not finite: nothing may be sealed."""

    kind = "unsafe-numerics"


class UnsupportedFormat(Refused):
    """A store or node of a newer version than this program reads."""

    kind = "unsupported-format"


class Untrusted(Refused):
    """Blocks that came from elsewhere, and that nobody vouches for whom this home trusts. Data: `cid`, `signers`."""

    kind = "untrusted"


class AccessDenied(CyberKVError, PermissionError):
    """The reader lacks a key or a grant."""

    exit_code = 6
    kind = "access-denied"


class BadKey(AccessDenied):
    """A key that cannot be used: unreadable, open to others, locked, or of a form that proves nothing."""

    kind = "bad-key"


class NotARecipient(AccessDenied):
    """None of our keys opens a grant."""

    kind = "not-a-recipient"


class ProofRejected(AccessDenied):
    """A proof of access, or a request for one, that is turned down. Data: `scheme`, `reason`."""

    kind = "proof-rejected"


class PeerError(CyberKVError, ConnectionError):
    """A peer did not give what was asked."""

    exit_code = 7
    kind = "peer"


class PeerUnreachable(PeerError):
    """No answer within the time allowed."""

    kind = "peer-unreachable"


class PeerMisbehaved(PeerError):
    """An answer outside the protocol: a wrong type, an endless body, a page instead of a block."""

    kind = "peer-misbehaved"


class NotOffered(PeerError):
    """A peer that does not answer in the form that was asked for; in another it may."""

    kind = "not-offered"


class RpcFailed(PeerError):
    """A node says that it could not do what it was asked. Data: `command`, `status`, `reason`."""

    kind = "rpc-failed"


class TierFull(CyberKVError, OSError):
    """No room, and nothing that may be dropped."""

    exit_code = 8
    kind = "full"
