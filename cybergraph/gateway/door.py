"""The door before sealed content: who proves access gets a token, and with it the ciphertext.

    POST /proof/challenge  {"root":"bafy…","scheme":"access-sig/ed25519/1"}          -> {"challenge":bytes}
    POST /proof            {"challenge":bytes,"proof":bytes}                         -> {"seconds":900,"token":"…"}
    GET /ipfs/…            Authorization: Bearer …

Bodies are dag-json. This guards what the server gives away, not the text: that is kept from others by encryption, here
and wherever else the ciphertext lies.

Without a good token, a sealed block is answered as one that nobody has: 404, and to a bad token 401, whatever was asked
for. Only the two blocks that a sealed root names in public are answered with 401 in both cases, which tells no more
than the root does, and tells a reader where to prove access.
"""

from collections.abc import Callable
from threading import BoundedSemaphore
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..access.proof import MAX_CHALLENGE_BYTES, AccessSig, Challenge, RingOr, Verifier
from ..cid import Cid
from ..dagjson import decode, encode
from ..errors import Corrupt, MalformedCid, ProofRejected, Refused
from ..foreign import AnyCid, AnyValue, parse_cid
from ..peers.proving import ASK_AT, PROVE_AT, WANTS
from .content import Content
from .limits import is_local, reader
from .passes import LIFE_S, Passes, bearer
from .refusal import REFUSED, refuse
from .withheld import Shown, Withheld

MOST_ASKED_BYTES: Final = 512
"""Of a request for a challenge."""
MOST_PROOF_BYTES: Final = 96 << 10
"""Of an answer: that of the largest ring, written in JSON."""
MOST_CHECKS: Final = 4
"""Proofs being checked at one time: one of the largest ring takes a processor up to four seconds."""
_WANTS: Final = f'{WANTS} challenge="{ASK_AT}"'

SCHEMES: Final = (AccessSig.id, RingOr.id)
"""What readers are asked for. Neither tells which reader it is."""

V = TypeVar("V")


class Door:
    """Keeps back what is sealed, asks for proofs and lets in. Its methods may be called from several threads."""

    def __init__(self, content: Content, now_s: Callable[[], int], audience: str = "") -> None:
        """Stand before `content`. `now_s` gives whole seconds since 1970."""
        self._content = content
        self._now_s = now_s
        self._withheld = Withheld(content)
        self._verifier = Verifier(audience)
        self._passes = Passes()
        self._checks = BoundedSemaphore(MOST_CHECKS)
        self.outside: Content = Shown(content, self._withheld, None)
        """What everybody may see."""

    @property
    def audience(self) -> str:
        """The URL by which readers know this server: a proof for another is refused, and so is ours by them."""
        return self._verifier.audience

    @audience.setter
    def audience(self, url: str) -> None:
        self._verifier.audience = url

    @property
    def open_count(self) -> int:
        """How many challenges wait for an answer."""
        return self._verifier.open_count

    def routes(self) -> list[Route]:
        """List the addresses at which access is proven."""
        return [Route(ASK_AT, self.ask, methods=["POST"]), Route(PROVE_AT, self.prove, methods=["POST"])]

    def content_for(self, request: Request) -> Content:
        """Give what this request may see."""
        self._withheld.refresh()
        root = self._proven(request)
        return self.outside if root is None else Shown(self._content, self._withheld, root)

    def headers_for(self, request: Request) -> dict[str, str]:
        """Give the headers by which caches keep apart what not everybody may see."""
        apart = {"Vary": "Accept, Authorization"}
        if self._proven(request) is not None:
            apart["Cache-Control"] = "private, max-age=29030400, immutable"
        return apart

    def turn_away(self, request: Request, text: str) -> None:
        """Raise `HTTPException` 401 where the absence of a block, by its CID, is for a proof to mend."""
        has_token = bearer(request.headers.get("authorization", "")) is not None
        if has_token and self._proven(request) is None:
            raise refuse(
                401, "this token is not good, or not any longer", **{"WWW-Authenticate": f'{_WANTS}, error="token"'}
            )
        if self._withheld.is_named(parse_cid(text)):
            raise refuse(401, "this is given to those who prove access", **{"WWW-Authenticate": _WANTS})

    async def ask(self, request: Request) -> Response:
        """Answer with a challenge."""
        body = await _body(request, MOST_ASKED_BYTES)
        fields = _fields(body, "root", "scheme")
        root, scheme = _typed(fields["root"], str), _typed(fields["scheme"], str)
        host = request.client.host if request.client is not None else ""
        return _answer({"challenge": await run_in_threadpool(self._issue, root, scheme, host)})

    async def prove(self, request: Request) -> Response:
        """Check a proof and answer with a token."""
        body = await _body(request, MOST_PROOF_BYTES)
        fields = _fields(body, "challenge", "proof")
        challenge, proof = _typed(fields["challenge"], bytes), _typed(fields["proof"], bytes)
        return _answer({"seconds": LIFE_S, "token": await run_in_threadpool(self._check, challenge, proof)})

    def _proven(self, request: Request) -> Cid | None:
        token = bearer(request.headers.get("authorization", ""))
        return None if token is None else self._passes.root(token, self._now_s())

    def _issue(self, text: str, scheme: str, host: str) -> bytes:
        try:
            root: AnyCid = parse_cid(text)
        except MalformedCid as error:
            raise refuse(400, "not a CID") from error
        sealed = self._withheld.find(root)
        if sealed is None or sealed.terms is None:
            raise refuse(404, "no such sealed conversation is published here")
        terms = sealed.terms
        if scheme not in SCHEMES:
            raise refuse(403, "access is not proven by this scheme here")
        asker = None if is_local(host) else reader(host)
        return _judged(lambda: self._verifier.issue(scheme, terms, now_s=self._now_s(), asker=asker).encode())

    def _check(self, data: bytes, proof: bytes) -> str:
        if not self._checks.acquire(blocking=False):
            raise refuse(503, "too many proofs at once, come back in a moment", **{"Retry-After": "1"})
        try:
            return _judged(lambda: self._checked(data, proof))
        finally:
            self._checks.release()

    def _checked(self, data: bytes, proof: bytes) -> str:
        if len(data) > MAX_CHALLENGE_BYTES:
            raise refuse(413, "longer than any challenge")
        sealed = self._withheld.by_grant(Challenge.decode(data).grant)
        if sealed is None or sealed.terms is None:
            raise refuse(404, "no such sealed conversation is published here")
        self._verifier.check(data, proof, sealed.terms, now_s=self._now_s())
        return self._passes.give(sealed.cid, self._now_s())


async def _body(request: Request, most_bytes: int) -> bytes:
    """Read the body of a request. Raises `HTTPException` 413 or 400 before anything of it is parsed."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > most_bytes:
                raise refuse(413, f"more than {most_bytes} bytes", Connection="close")
    except ClientDisconnect as error:
        raise refuse(400, "the request broke off") from error
    return bytes(data)


def _fields(body: bytes, *names: str) -> dict[str, AnyValue]:
    try:
        item = decode(body)
    except Corrupt as error:
        raise refuse(400, f"not dag-json: {error}") from error
    if not isinstance(item, dict) or set(item) != set(names):
        raise refuse(400, f"a map of {' and '.join(names)} is wanted")
    return item


def _typed(value: AnyValue, kind: type[V]) -> V:
    if type(value) is not kind:  # a CID is bytes, too
        raise refuse(400, "a field is of another type")
    return value


def _judged(work: Callable[[], V]) -> V:
    """Do the work. Raises `HTTPException` 403 for a proof that is turned down, 400 for what is no challenge.

    And 429 for who has to answer some first.
    """
    try:
        return work()
    except ProofRejected as error:
        if (retry_s := error.data.get("retry_s")) is not None:
            raise refuse(429, error.message, **{"Retry-After": str(retry_s)}) from error
        raise refuse(403, error.message) from error
    except (Corrupt, Refused) as error:
        raise refuse(400, error.message) from error


def _answer(fields: dict[str, AnyValue]) -> Response:
    return Response(encode(fields), headers={**REFUSED, "Content-Type": "application/json"})
