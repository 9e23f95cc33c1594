"""HTTP/2 from readers that say anything: nothing escapes, and nothing stays behind when they are gone."""

import asyncio
import random
from contextlib import suppress

import h2.connection
import pytest
from h2.exceptions import ProtocolError
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from cyberkv.cybergraph.gateway.http2 import Http2Protocol

PREFACE_BYTES = 24


class Wire:
    """The end of a connection that the server holds."""

    def __init__(self) -> None:
        self.sent, self.closed = b"", False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.1", 5)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["method"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Any", b"x")]})
    for _ in range(3):
        await send({"type": "http.response.body", "body": bytes(50_000), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def spoken(chance: random.Random) -> bytes:
    """What a reader says that keeps to the protocol."""
    talk = h2.connection.H2Connection()
    talk.initiate_connection()
    for _ in range(chance.randint(1, 6)):
        stream = talk.get_next_available_stream_id()
        head = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x?y")]
        talk.send_headers(stream, head, end_stream=chance.random() < 0.5)
        with suppress(ProtocolError):
            if chance.random() < 0.3:
                talk.send_data(stream, bytes(chance.choice([0, 10, 1000])), end_stream=chance.random() < 0.5)
            if chance.random() < 0.3:
                talk.reset_stream(stream)
        if chance.random() < 0.3:
            talk.increment_flow_control_window(1000)
        if chance.random() < 0.2:
            talk.update_settings({4: chance.choice([0, 10, 2**31 - 1])})
    if chance.random() < 0.1:
        talk.close_connection()
    return talk.data_to_send()


async def hear(data: bytes, chance: random.Random) -> bytes:
    """Serve one reader, who leaves in the end; give what it was sent."""
    config = Config(large, lifespan="off", log_config=None)
    config.load()
    state, wire = ServerState(), Wire()
    connection = Http2Protocol(config, state)
    connection.connection_made(wire)
    at = 0
    while at < len(data) and not wire.closed:
        size = chance.choice([1, 9, 50, 1000])
        connection.data_received(data[at : at + size])
        at += size
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (state.tasks, state.connections) == (set(), set())
    return wire.sent


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_of_a_reader(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        data = bytearray(spoken(chance))
        for _ in range(chance.choice([1, 1, 2, 5])):
            data[chance.randrange(PREFACE_BYTES, len(data))] = chance.randrange(256)
        asyncio.run(hear(bytes(data), chance))


def test_unchanged_bytes_are_answered() -> None:
    chance = random.Random(1)
    assert sum(bytes(1000) in asyncio.run(hear(spoken(chance), chance)) for _ in range(30)) > 10


@pytest.mark.parametrize("seed", range(3))
def test_bytes_of_no_protocol(seed: int) -> None:
    chance = random.Random(seed)
    for lead in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        asyncio.run(hear(lead + chance.randbytes(3000), chance))
