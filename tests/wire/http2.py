"""A reader of HTTP/2, by the library that speaks the protocol and nothing else."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import h2.connection
import h2.events
import h2.settings

from tests.wire.conftest import Served


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """Whether the server said that this was all."""


class Http2:
    """A connection of HTTP/2, by the library that speaks the protocol and nothing else."""

    def __init__(self, served: Served, context: ssl.SSLContext, window_bytes: int = 65_535) -> None:
        self.socket = trusting(served, context)
        self.protocol = self.socket.selected_alpn_protocol()
        self._holds_back = False
        self._talk = h2.connection.H2Connection()
        window = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
        self._talk.local_settings = h2.settings.Settings(client=True, initial_values=window)
        self._talk.initiate_connection()
        self._flush()

    def _flush(self) -> None:
        if not self._holds_back:
            self.socket.sendall(self._talk.data_to_send())

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Send what is asked inside the `with` at its end."""
        self._holds_back = True
        yield
        self._holds_back = False
        self._flush()

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> int:
        stream = self._talk.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        self._talk.send_headers(stream, head, end_stream=body is None)
        if body is not None:
            self._talk.send_data(stream, body)  # and no end
        self._flush()
        return stream

    def take_back(self, stream: int) -> None:
        self._talk.reset_stream(stream)
        self._flush()

    def take(self, stream: int, size_bytes: int) -> None:
        """Let so many more bytes of an answer come."""
        self._talk.increment_flow_control_window(size_bytes, stream)
        self._flush()

    def answers(self, *streams: int) -> list[Answer]:
        """Read until these are over, or the connection is. What comes for others is not taken."""
        heads: dict[int, dict[str, str]] = {stream: {":status": "0"} for stream in streams}
        bodies, whole = dict.fromkeys(streams, b""), dict.fromkeys(streams, False)
        waited_for = set(streams)
        while waited_for:
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            for event in self._talk.receive_data(data):
                if getattr(event, "stream_id", None) not in streams:
                    continue
                if isinstance(event, h2.events.ResponseReceived):
                    heads[event.stream_id] = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] += event.data
                    self._talk.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    whole[event.stream_id] = True
                    waited_for.discard(event.stream_id)
                elif isinstance(event, h2.events.StreamReset):
                    waited_for.discard(event.stream_id)
            with suppress(OSError):
                self._flush()
        return [Answer(int(heads[each].pop(":status")), heads[each], bodies[each], whole[each]) for each in streams]

    def get(self, path: str, method: str = "GET") -> Answer:
        return self.answers(self.ask(path, method))[0]

    def close(self) -> None:
        self.socket.close()


def trusting(served: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, port = served.url.removeprefix("https://").split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=20), server_hostname="localhost")
