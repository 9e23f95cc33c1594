"""The chat-completions protocol as an ASGI application.

It reads and writes conversations of this home, so it is for programs of its owner: without a key it answers this
machine alone, and no page of another site, whatever a browser lets that page send.
"""

import asyncio
import errno
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...cybergraph.errors import BadReference, CyberKVError, LimitExceeded
from ..batching.front import Ticket
from .answers import Heading, error_json, error_of, error_status
from .protocol import ChatRequest, parse_chat
from .turns import Ended, Turns

MOST_BODY_BYTES: Final = 8 << 20
_COMPLETIONS: Final = "/v1/chat/completions"
_MODELS: Final = "/v1/models"
_CLIENT_LEFT: Final = 499
"""As other servers count it."""
_BROKEN: Final = "the answer broke off"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Event = str | Ended | Exception


@dataclass(frozen=True, slots=True)
class Offer:
    """What a chat server offers, and to whom."""

    turns: Turns
    model: str
    """Name under which clients ask for the model; its CID does, too."""
    model_cid: str
    now_s: Callable[[], int]
    """Whole seconds since 1970."""
    new_id: Callable[[], str]
    """A fresh identifier for each answer."""
    is_own: Callable[[Request], bool]
    """Whether a program of this machine asks for itself, as far as the request shows."""
    key: str | None = None
    """What callers have to show as a bearer token; None: who is not of this machine is turned away."""


def build_chat_app(offer: Offer) -> Starlette:
    """Build the application. It records every turn that ends."""
    chat = _Chat(offer)
    routes = [
        Route(_COMPLETIONS, chat.complete, methods=["POST"]),
        Route(_MODELS, chat.list_models, methods=["GET"]),
        Route(_MODELS + "/{name:path}", chat.show_model, methods=["GET"]),
        Route("/v1/{rest:path}", chat.unknown, methods=["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"]),
    ]
    return Starlette(routes=routes, exception_handlers=_HANDLERS)


class _Chat:
    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    async def complete(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # Anything else a page of another site could send without asking first.
            return _problem(415, "the body must be application/json")
        try:
            asked = parse_chat(await _json_body(request))
        except CyberKVError as error:
            return _failed(request, error)
        if asked.model not in (self._offer.model, self._offer.model_cid):
            return _problem(404, f"the model {asked.model!r:.100} is not served here", "model", "model_not_found")
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        ticket = await run_in_threadpool(self._offer.turns.begin, asked, deliver)
        heading = Heading(f"chatcmpl-{self._offer.new_id()}", self._offer.now_s(), asked.model)
        coming = _Coming(request, events)
        try:
            if asked.stream:
                # Wait for the first event: what fails before any text is an answer with a status, not a broken stream.
                return _Stream(_pieces(heading, asked, await coming.take(), events), ticket)
            return await _whole(heading, coming)
        except BaseException:
            ticket.cancel()
            raise
        finally:
            coming.close()

    async def list_models(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({"object": "list", "data": [self._model()]}, headers=_HEADERS)

    async def show_model(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        name = request.path_params["name"]
        if name not in (self._offer.model, self._offer.model_cid):
            return _problem(404, f"the model {name!r:.100} is not served here", "model", "model_not_found")
        return JSONResponse(self._model(), headers=_HEADERS)

    async def unknown(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        path = request.url.path
        if path in (_COMPLETIONS, _MODELS) or path.startswith(f"{_MODELS}/"):
            allowed = "POST" if path == _COMPLETIONS else "GET, HEAD"
            return _problem(405, f"{path:.200} takes {allowed}, not {request.method}", allow=allowed)
        return _problem(
            404, f"{request.method} {request.url.path:.200} is not offered here: only chat completions and models are"
        )

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._offer.model, "object": "model", "created": 0, "owned_by": "cyberkv",
            "cyberkv": {"cid": self._offer.model_cid},
        }  # fmt: skip

    def _refusal(self, request: Request) -> Response | None:
        """Turn away who may not ask."""
        if self._offer.key is None:
            if self._offer.is_own(request) and "origin" not in request.headers:
                return None
            return _problem(403, "without a key, only programs of this machine are answered", code="not_local")
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), self._offer.key.encode()):
            return None
        return _problem(401, "the key is missing or wrong", code="invalid_api_key")


class _Coming:
    """What comes of a turn, for as long as its reader is there."""

    def __init__(self, request: Request, events: asyncio.Queue[Event]) -> None:
        self._events = events
        self._watching = asyncio.ensure_future(_disconnected(request))

    async def take(self) -> str | Ended:
        """Wait for the next event. Raises it where it is an error, `ClientDisconnect` where the reader has left."""
        taking = asyncio.ensure_future(self._events.get())
        try:
            await asyncio.wait({taking, self._watching}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                raise ClientDisconnect
        finally:
            taking.cancel()  # without effect on what is done
        if isinstance(event := taking.result(), Exception):
            raise event
        return event

    def close(self) -> None:
        """Stop watching the reader."""
        self._watching.cancel()


class _Stream(StreamingResponse):
    """A stream of events that ends its turn when the reader leaves, also before the first piece was taken."""

    def __init__(self, pieces: AsyncIterator[bytes], ticket: Ticket) -> None:
        super().__init__(pieces, headers=_HEADERS, media_type="text/event-stream")
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticket.cancel()  # without effect on what has ended


async def _whole(heading: Heading, coming: _Coming) -> Response:
    """Give an answer once all of it is there."""
    pieces: list[str] = []
    while isinstance(event := await coming.take(), str):
        pieces.append(event)
    headers = _HEADERS | (event.kept.headers() if event.kept else {})
    return JSONResponse(heading.completion("".join(pieces), event.finish, event.usage, event.kept), headers=headers)


async def _pieces(
    heading: Heading, asked: ChatRequest, first: str | Ended, events: asyncio.Queue[Event]
) -> AsyncIterator[bytes]:
    event: Event = first
    yield _line(heading.chunk({"role": "assistant", "content": ""}))
    while isinstance(event, str):
        yield _line(heading.chunk({"content": event}))
        event = await events.get()
    if isinstance(event, Ended):
        yield _line(heading.chunk({}, event.finish, event.kept))
        if asked.include_usage:
            yield _line(heading.usage_chunk(event.usage))
    else:
        yield _line(error_of(event) if isinstance(event, CyberKVError) else error_json(_BROKEN, "server_error"))
    yield b"data: [DONE]\n\n"


def _line(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _json_body(request: Request) -> object:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise LimitExceeded(f"the body is over {MOST_BODY_BYTES >> 20} MiB", limit_bytes=MOST_BODY_BYTES)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadReference("the body is not JSON") from error


async def _disconnected(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.2)


def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, CyberKVError)  # noqa: S101 - starlette calls it for these alone
    status = error_status(error)
    later = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse(error_of(error), status, {**_HEADERS, **later})


def _broken(_: Request, error: Exception) -> Response:
    """Answer for what nobody foresaw. What it was may say too much of this machine, so the caller is not told."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    later = {"Retry-After": "1"} if full else {}
    message = "the disk is full" if full else _BROKEN
    return JSONResponse(error_json(message, "server_error"), 503 if full else 500, {**_HEADERS, **later})


def _left(_: Request, __: Exception) -> Response:
    """Answer nobody: the reader has left, which is no fault of this program."""
    return Response(status_code=_CLIENT_LEFT)


_HANDLERS: Final = {CyberKVError: _failed, OSError: _broken, ClientDisconnect: _left, Exception: _broken}


def _problem(
    status: int, message: str, param: str | None = None, code: str | None = None, *, allow: str | None = None
) -> Response:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    headers = _HEADERS if allow is None else {**_HEADERS, "Allow": allow}
    return JSONResponse(error_json(message, kind, param=param, code=code), status, headers)
