"""HTTP/2 on one connection: each request runs the application in a task of its own.

The protocol itself is the `h2` library's. Here is what it leaves to others: no more goes to a reader than it asks for,
so that nothing piles up in memory; who asks for nothing, or takes nothing, is left; an answer that breaks off is shown
as that.
"""

import asyncio
from contextlib import suppress
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from starlette.types import Message, Scope
from uvicorn import Config
from uvicorn.server import ServerState

from . import patience
from .http2answer import Answer, noticing_the_end, scope_of
from .limits import MOST_HEAD_BYTES, may_connect

MOST_STREAMS: Final = 64
"""Requests at one time on one connection."""
MOST_RESETS: Final = 1000
"""Requests that a reader may take back at once before its connection ends: each cost us more than the reader."""
RESETS_S: Final = 10.0
"""Of these, so many are forgotten in a second: who looks around for hours takes many back and does no harm."""
MOST_FRAMES: Final = 4096
"""Frames that a reader may send beside its requests and what answers them: each costs us more than its few bytes."""
_FRAMES_EACH: Final = 64
"""Frames that it may send for each request."""
_BYTES_EACH: Final = 1024
"""And one for so many bytes that were sent to it: it has to ask for more."""
_SLICE_BYTES: Final = 16 << 10
AHEAD_BYTES: Final = 256 << 10
"""What may wait in one connection, and what is handed on at once."""
_MOST_WAITING_BYTES: Final = 4 << 20
"""Beyond this, a reader asks for words of the protocol and takes none."""
_HOP_HEADERS: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))


class _Connection(H2Connection):
    """The protocol, and how many frames it was sent."""

    frames = 0

    def _receive_frame(self, frame: Any) -> list[Event]:  # the only place that sees each of them
        self.frames += 1
        events: list[Event] = super()._receive_frame(frame)
        return events


class Http2Protocol(asyncio.Protocol):
    """A connection on which HTTP/2 was agreed on."""

    def __init__(self, config: Config, server_state: ServerState) -> None:
        self.client: tuple[str, int] | None = None
        self._app = config.loaded_app
        self._state = server_state
        self._loop = asyncio.get_running_loop()
        self._talk = _Connection(H2Configuration(client_side=False, header_encoding=None))
        self._talk.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEAD_BYTES,
            },
        )
        self._talk.decoder.max_header_list_size = MOST_HEAD_BYTES
        self._answers: dict[int, Answer] = {}
        self._resets = 0.0
        self._reset_s = self._loop.time()
        """When the last request was taken back."""
        self._requests = 0
        self._sent_bytes = 0
        self._is_ending = False
        self._is_writable = True
        self.transport: Any = None
        self._changed = asyncio.Event()
        """Something happened for which an answer may wait."""
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Say hello and wait for a request, or close where there are too many connections."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.client = (peer[0], peer[1]) if peer else None
        if self.client is not None and not may_connect(self.client[0], patience.addresses(self._state.connections)):
            self.transport.abort()
            return
        self._state.connections.add(self)  # type: ignore[arg-type]  # all that is asked of one is `shutdown`
        self.transport.set_write_buffer_limits(high=AHEAD_BYTES)
        self._talk.initiate_connection()
        self._flush()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """End what was being answered."""
        self._state.connections.discard(self)
        self._cancel_idle()
        for answer in self._answers.values():
            answer.leave()
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        """Take what the reader says, a little at a time: what is too much is noticed before it is all gone through."""
        for at in range(0, len(data), _SLICE_BYTES):
            if self.transport.is_closing():
                return
            try:
                events = self._talk.receive_data(data[at : at + _SLICE_BYTES])
            except ProtocolError:
                self._flush()  # what was wrong, in the words of the protocol
                self._close()
                return
            for event in events:
                self._take(event)
            self._changed.set()
            self._flush()
            if self._talk.frames > MOST_FRAMES + _FRAMES_EACH * self._requests + self._sent_bytes // _BYTES_EACH:
                self._end(ErrorCodes.ENHANCE_YOUR_CALM)
            elif self.transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
                self.transport.abort()

    def pause_writing(self) -> None:
        """Hold answers back."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """Let answers go on."""
        self._is_writable = True
        self._changed.set()

    def shutdown(self) -> None:
        """Take no further request, and close once the answers under way are over."""
        self._is_ending = True
        if not self._answers:
            self._end()

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, StreamEnded) and event.stream_id in self._answers:
            self._answers[event.stream_id].is_asked = True
        elif isinstance(event, DataReceived):
            # No request here has a body: one gets the window of its stream, and the others are not held up by it.
            if event.flow_controlled_length:
                with suppress(ProtocolError):  # the connection ended with an event before
                    self._talk.increment_flow_control_window(event.flow_controlled_length)
        elif isinstance(event, StreamReset):
            if event.stream_id in self._answers:
                self._answers[event.stream_id].leave()
            if self._count_resets() > MOST_RESETS:
                self._end(ErrorCodes.ENHANCE_YOUR_CALM)
        elif isinstance(event, ConnectionTerminated):
            self.shutdown()

    def _count_resets(self) -> float:
        """Count one more request that was taken back."""
        now_s = self._loop.time()
        self._resets = max(0.0, self._resets - (now_s - self._reset_s) * RESETS_S) + 1
        self._reset_s = now_s
        return self._resets

    def _begin(self, request: RequestReceived) -> None:
        if self.transport.is_closing():
            return
        self._requests += 1
        stream = request.stream_id
        scope = scope_of(request, self.client, self.transport.get_extra_info("sockname"))
        # Requests that were taken back are over for the protocol, and still under way here.
        if self._is_ending or scope is None or len(self._answers) >= MOST_STREAMS:
            self._reset(stream, ErrorCodes.PROTOCOL_ERROR if scope is None else ErrorCodes.REFUSED_STREAM)
            return
        self._cancel_idle()
        answer = self._answers[stream] = Answer(patience.STALL_S)
        task = self._loop.create_task(self._answer(stream, scope, answer))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _answer(self, stream: int, scope: Scope, answer: Answer) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.is_bare = scope["method"] == "HEAD" or message["status"] in (204, 304)
                self._send_head(stream, message)
            else:
                body = b"" if answer.is_bare else message.get("body", b"")
                await self._send_body(stream, answer, body)
                if not message.get("more_body", False):
                    self._send_end(stream, answer)

        try:
            # What breaks off is shown to the reader below; there is nobody else to tell.
            with suppress(Exception):
                await self._app(scope, answer.receive, send)
        finally:
            if not answer.is_over:
                self._reset(stream, ErrorCodes.INTERNAL_ERROR)
            del self._answers[stream]
            if not self._answers and not self.transport.is_closing():
                if self._is_ending:
                    self._end()
                else:
                    self._await_request()

    def _send_head(self, stream: int, message: Message) -> None:
        headers = [(name.lower(), value) for name, value in message["headers"] if name.lower() not in _HOP_HEADERS]
        with noticing_the_end():
            self._talk.send_headers(
                stream, [(b":status", str(message["status"]).encode()), *self._state.default_headers, *headers]
            )
        self._flush()

    async def _send_body(self, stream: int, answer: Answer, body: bytes) -> None:
        """Send as the reader asks for it. Raises `OSError` where it does not, or has left."""
        at = 0
        while at < len(body):
            room_bytes = await self._room_bytes(stream, answer)
            end = min(at + room_bytes, len(body))
            with noticing_the_end():
                while at < end:
                    count = min(end - at, self._talk.max_outbound_frame_size)
                    self._talk.send_data(stream, body[at : at + count])
                    at += count
                    self._sent_bytes += count
            self._flush()
            answer.patience_s = min(patience.STALL_S, answer.patience_s + room_bytes / patience.LEAST_BYTES_S)
            await asyncio.sleep(0)  # others have their turn

    async def _room_bytes(self, stream: int, answer: Answer) -> int:
        start_s = self._loop.time()
        try:
            async with asyncio.timeout(answer.patience_s):
                while True:
                    if answer.has_left:
                        raise ConnectionResetError
                    with noticing_the_end():
                        window_bytes = self._talk.local_flow_control_window(stream)
                    if window_bytes > 0 and self._is_writable:
                        return min(window_bytes, AHEAD_BYTES)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.transport.abort()
            raise
        finally:
            answer.patience_s -= self._loop.time() - start_s

    def _send_end(self, stream: int, answer: Answer) -> None:
        answer.is_over = True
        with noticing_the_end():
            self._talk.end_stream(stream)
        if not answer.is_asked:  # and whatever else it wants to say about this request is not read
            self._reset(stream, ErrorCodes.NO_ERROR)
        self._flush()

    def _reset(self, stream: int, code: ErrorCodes) -> None:
        with suppress(ProtocolError):  # the reader was quicker
            self._talk.reset_stream(stream, code)
        self._flush()

    def _flush(self) -> None:
        data = self._talk.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _end(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        self._is_ending = True
        with suppress(ProtocolError):
            self._talk.close_connection(code)
        self._flush()
        self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():  # it does not bear being told twice
            self.transport.close()

    def _await_request(self) -> None:
        self._cancel_idle()
        self._idle = self._loop.call_later(patience.HEAD_S, self._end)

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
