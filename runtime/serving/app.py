"""The chat-completions protocol as an ASGI application.

It reads and writes conversations of this home, so it is for programs of its owner: without a key it answers this
machine alone, and no page of another site, whatever a browser lets that page send.
"""

import asyncio
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

from ...cybergraph.errors import BadReference, CyberKVError, LimitExceeded
from ..batching.front import Ticket
from .answers import Heading, error_json, error_of, error_status
from .protocol import ChatRequest, parse_chat
from .turns import Ended, Turns

MOST_BODY_BYTES: Final = 8 << 20
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
        Route("/v1/chat/completions", chat.complete, methods=["POST"]),
        Route("/v1/models", chat.list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", chat.show_model, methods=["GET"]),
        Route("/v1/{rest:path}", chat.unknown, methods=["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"]),
    ]
    return Starlette(routes=routes, exception_handlers={CyberKVError: _failed})


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
        if asked.stream:
            return await self._streamed(heading, asked, events, ticket)
        return await self._whole(request, heading, events, ticket)

    async def _whole(
        self, request: Request, heading: Heading, events: asyncio.Queue[Event], ticket: Ticket
    ) -> Response:
        watching = asyncio.ensure_future(_disconnected(request))
        pieces: list[str] = []
        try:
            while True:
                taking = asyncio.ensure_future(events.get())
                await asyncio.wait({taking, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    raise ClientDisconnect
                event = taking.result()
                if isinstance(event, str):
                    pieces.append(event)
                elif isinstance(event, Exception):
                    raise event
                else:
                    headers = _HEADERS | (event.kept.headers() if event.kept else {})
                    body = heading.completion("".join(pieces), event.finish, event.usage, event.kept)
                    return JSONResponse(body, headers=headers)
        except BaseException:
            ticket.cancel()
            raise
        finally:
            watching.cancel()

    async def _streamed(
        self, heading: Heading, asked: ChatRequest, events: asyncio.Queue[Event], ticket: Ticket
    ) -> Response:
        # Wait for the first event: what fails before any text is an answer with a status, not a broken stream.
        try:
            first = await events.get()
        except BaseException:
            ticket.cancel()
            raise
        if isinstance(first, Exception):
            raise first
        return StreamingResponse(
            _pieces(heading, asked, first, events, ticket), headers=_HEADERS, media_type="text/event-stream"
        )

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
        return self._refusal(request) or _problem(
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


async def _pieces(
    heading: Heading, asked: ChatRequest, first: Event, events: asyncio.Queue[Event], ticket: Ticket
) -> AsyncIterator[bytes]:
    event = first
    try:
        yield _line(heading.chunk({"role": "assistant", "content": ""}))
        while isinstance(event, str):
            yield _line(heading.chunk({"content": event}))
            event = await events.get()
        if isinstance(event, Ended):
            yield _line(heading.chunk({}, event.finish, event.kept))
            if asked.include_usage:
                yield _line(heading.usage_chunk(event.usage))
        else:
            known = isinstance(event, CyberKVError)
            yield _line(error_of(event) if known else error_json("the answer broke off", "server_error"))
        yield b"data: [DONE]\n\n"
    finally:
        ticket.cancel()  # where the reader left; without effect on what has ended


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
    status = 413 if isinstance(error, LimitExceeded) else error_status(error)
    later = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse(error_of(error), status, {**_HEADERS, **later})


def _problem(status: int, message: str, param: str | None = None, code: str | None = None) -> Response:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    return JSONResponse(error_json(message, kind, param=param, code=code), status, _HEADERS)
