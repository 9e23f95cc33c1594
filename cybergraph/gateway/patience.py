"""Limits on readers that keep a connection and do nothing with it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import may_connect

HEAD_S = 10.0
"""Time for a request to arrive whole, from the opening of the connection or the end of the answer before."""
STALL_S = 30.0
"""Time in which a reader has to take something of what is sent to it."""
LEAST_BYTES_S = 1024.0
"""Slowest reading of one answer, for long: whoever takes a byte now and then takes the place of others."""
AHEAD_BYTES = 4 << 20
"""What may wait in one connection: with less, a quick reader waits for us between any two pieces."""
_LAST_BYTES: Final = 64 << 10
"""What may still wait in a connection that is closed."""
_LOOK_S: Final = 0.1
"""How often a connection that should be closed is looked at."""
_INCOMPLETE: Final = (h11.IDLE, h11.SEND_BODY)
"""How a reader stands who has not sent all of a request yet."""


def addresses(connections: Iterable[object]) -> list[str]:
    """List where connections come from, as far as that is known."""
    clients = (getattr(connection, "client", None) for connection in connections)
    return [client[0] for client in clients if client is not None]


class Unhurried:
    """A transport that does something else when it is told to close."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._transport = transport
        self._end = end
        self._is_ending = False
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Begin to close."""
        if not self._is_ending:
            self._is_ending = True
            self._end()

    def is_closing(self) -> bool:
        """Whether nothing more should be written."""
        return self._is_ending or self._transport.is_closing()

    def close_now(self) -> None:
        """Close."""
        self._transport.close()


class PatientProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, on connections that are closed where no request comes or no answer is taken.

    Without this, whoever opens connections and sends nothing, or a request one letter a minute, keeps others out.
    """

    below: asyncio.Transport | None = None
    """What carries the transport, where that is one of TLS: most of what waits may wait there."""
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _is_ending = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request, or close where there are too many connections."""
        super().connection_made(cast("asyncio.Transport", Unhurried(transport, self._end)))
        if self.client is not None and not may_connect(self.client[0], addresses(self.connections - {self})):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=AHEAD_BYTES)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a request is whole."""
        if self._is_ending:
            return
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE:
            self._cancel(self._head)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one, which may have been answered before its end."""
        super().on_response_complete()
        if self.conn.their_state in _INCOMPLETE and not self._is_ending:
            self._await_head()

    def pause_writing(self) -> None:
        """Begin to watch a reader that is slower than we are."""
        super().pause_writing()
        if not self._is_ending:
            self._watch(self._waiting_bytes() + 1)

    def resume_writing(self) -> None:
        """Stop watching."""
        if not self._is_ending:
            self._cancel(self._stall)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nothing is asked on, unless its reader may still be busy with the last answer."""
        if not self._waiting_bytes():
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._cancel(self._head)
        self._cancel(self._stall)

    def _waiting_bytes(self) -> int:
        """Count what is written and has not gone out."""
        below_bytes = self.below.get_write_buffer_size() if self.below is not None else 0
        return self.transport.get_write_buffer_size() + below_bytes

    def _await_head(self) -> None:
        self._cancel(self._head)
        self._head = self.loop.call_later(HEAD_S, self._is_overdue, self._waiting_bytes())

    def _is_overdue(self, before_bytes: int) -> None:
        waiting_bytes = self._waiting_bytes()
        if 0 < waiting_bytes < before_bytes:  # it is slow, and still reads the answer before
            self._head = self.loop.call_later(HEAD_S, self._is_overdue, waiting_bytes)
        else:
            self.transport.close()

    def _watch(self, before_bytes: int) -> None:
        waiting_bytes = self._waiting_bytes()
        if waiting_bytes < before_bytes:
            enough_bytes = max(waiting_bytes - int(STALL_S * LEAST_BYTES_S), 1)
            self._stall = self.loop.call_later(STALL_S, self._watch, enough_bytes)
        else:
            self.transport.abort()

    def _end(self) -> None:
        self._is_ending = True
        self._cancel(self._stall)
        self._linger(self._waiting_bytes() + 1, 0.0)

    def _linger(self, before_bytes: int, until_s: float) -> None:
        """Close once the reader has taken nearly all that waits for it, or takes nothing more.

        Closing by itself would wait for ever, and under TLS for seconds only.
        """
        waiting_bytes, now_s = self._waiting_bytes(), self.loop.time()
        if waiting_bytes < before_bytes:
            until_s = now_s + STALL_S
        if waiting_bytes <= _LAST_BYTES:
            cast("Unhurried", self.transport).close_now()
            self._stall = self.loop.call_later(STALL_S, self.transport.abort)
        elif now_s >= until_s:
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(_LOOK_S, self._linger, waiting_bytes, until_s)

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
