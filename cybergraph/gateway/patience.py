"""Limits on readers that keep a connection and do nothing with it."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Time for a request to arrive, from the opening of the connection or the end of the answer before."""
STALL_S = 30.0
"""Time in which a reader has to take something of what is sent to it."""
AHEAD_BYTES = 4 << 20
"""What may wait in one connection: with less, a quick reader waits for us between any two pieces."""


class PatientProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, on connections that are closed where no request comes or no answer is taken.

    Without this, whoever opens connections and sends nothing, or a request one letter a minute, keeps others out.
    """

    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=AHEAD_BYTES)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a request is whole."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel(self._head)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._await_head()

    def pause_writing(self) -> None:
        """Begin to watch a reader that is slower than we are."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size() + 1)

    def resume_writing(self) -> None:
        """Stop watching."""
        self._cancel(self._stall)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._cancel(self._head)
        self._cancel(self._stall)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._cancel(self._head)
        self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _watch(self, before_bytes: int) -> None:
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes < before_bytes:
            self._stall = self.loop.call_later(STALL_S, self._watch, waiting_bytes)
        else:
            self.transport.abort()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
