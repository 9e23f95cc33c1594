"""What a reader of HTTP/2 can do to a server, and what the server does then."""

import asyncio
from contextlib import closing, suppress
from threading import Event

import pytest
from starlette.types import Receive, Scope, Send

from cyberkv.cybergraph.gateway import Published, build_app, http2, patience
from cyberkv.cybergraph.index import Index
from tests.wire.conftest import Serve, Trust
from tests.wire.http2 import Http2
from tests.wire.synthetic import contents, conversation
from tests.wire.test_gateway_limits import hello
from tests.wire.test_gateway_patience import ended


def test_small_windows_get_everything_too(serve: Serve, trust: Trust, there: Index) -> None:
    store, root = conversation(blocks=30)
    blocks = contents(store, root)
    there.publish(root, blocks)
    served = serve(build_app(Published(store, there)))
    with closing(Http2(served, trust("h2"))) as usual, closing(Http2(served, trust("h2"), window_bytes=100)) as small:
        answers = [each.get(f"/ipfs/{root}?format=car") for each in (small, usual)]
    for answer in answers:
        del answer.headers["date"]  # a second may begin between them
    assert answers[0] == answers[1]


def test_an_answer_that_is_not_taken_holds_no_other_up(serve: Serve, trust: Trust, there: Index) -> None:
    store, root = conversation(blocks=30)
    there.publish(root, contents(store, root))
    with closing(Http2(serve(build_app(Published(store, there))), trust("h2"), window_bytes=2000)) as connection:
        waiting = connection.ask(f"/ipfs/{root}?format=car")
        answers = [connection.get(f"/ipfs/{root}?format=raw") for _ in range(5)]
        assert [answer.body for answer in answers] == [store.get(root)] * 5
        connection.take_back(waiting)
        assert connection.get(f"/ipfs/{root}?format=raw").whole


def test_a_request_with_a_body_is_answered_and_its_body_not_waited_for(serve: Serve, trust: Trust) -> None:
    with closing(Http2(serve(hello), trust("h2"))) as connection:
        for _ in range(8):  # together more than the window of the connection
            assert connection.answers(connection.ask("/", "POST", body=bytes(16_000)))[0].body == b"hi"
        assert connection.answers(connection.ask("/", "POST", body=b""))[0].body == b"hi"


def test_requests_taken_back_again_and_again_end_the_connection(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "RESETS_S", 0.0)  # however slow the machine is
    running_now, most_running = 0, 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running_now, most_running
        running_now += 1
        most_running = max(most_running, running_now)
        await asyncio.sleep(0.5)  # as what cannot be called off, such as a disk
        running_now -= 1
        await hello(scope, receive, send)

    served = serve(slow)
    with closing(Http2(served, trust("h2"))) as connection:
        with suppress(OSError):
            for _ in range(http2.MOST_RESETS + 100):
                connection.take_back(connection.ask("/"))
        assert ended(connection.socket)
    assert 0 < most_running <= http2.MOST_STREAMS
    with closing(Http2(served, trust("h2"))) as connection:
        assert connection.get("/").body == b"hi"


def test_requests_taken_back_now_and_then_do_not_end_the_connection(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MOST_RESETS", 3)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/wait":  # else it is under way for as long as it is wanted
            await hello(scope, receive, send)
        while scope["path"] == "/wait" and (await receive())["type"] != "http.disconnect":
            pass

    served = serve(answer)
    for forgotten_s, ends in ((1e9, False), (0.0, True)):  # so many in a second, and none
        monkeypatch.setattr(http2, "RESETS_S", forgotten_s)
        with closing(Http2(served, trust("h2"))) as connection:
            goes_on = False
            with suppress(OSError):
                for _ in range(20):
                    connection.take_back(connection.ask("/wait"))
                    Event().wait(0.001)
                goes_on = connection.get("/").whole
            assert goes_on is not ends


def test_words_of_the_protocol_that_are_not_taken_end_the_connection(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "_MOST_WAITING_BYTES", 1 << 16)
    monkeypatch.setattr(http2, "MOST_FRAMES", 1 << 40)
    with closing(Http2(serve(hello), trust("h2"))) as connection:
        pings = b"\0\0\x08\x06\0\0\0\0\0askagain" * 10_000
        with suppress(OSError):  # ends by that alone
            while True:
                connection.socket.sendall(pings)


PING, UNKNOWN, SETTINGS = b"\0\0\x08\x06\0\0\0\0\0askagain", b"\0\0\0\xbb\0\0\0\0\0", b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("frame", [PING, UNKNOWN, SETTINGS])
def test_words_of_the_protocol_without_end_end_the_connection(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 60.0)
    served = serve(hello)
    with closing(Http2(served, trust("h2"))) as connection:
        connection.socket.sendall(frame * (http2.MOST_FRAMES // 2))
        assert connection.get("/").body == b"hi"  # so many do no harm
        with suppress(OSError):
            connection.socket.sendall(frame * http2.MOST_FRAMES)
        assert ended(connection.socket)


def test_what_comes_after_the_end_is_not_read(
    serve: Serve,
    trust: Trust,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(http2, "MOST_RESETS", 3)
    served = serve(hello)
    with closing(Http2(served, trust("h2"))) as connection:
        with connection.at_once():
            for _ in range(200):
                connection.take_back(connection.ask("/"))
        assert ended(connection.socket)
    with closing(Http2(served, trust("h2"))) as connection:  # by whose answer all of the above was read
        assert connection.get("/").body == b"hi"
    assert len(served.requests) <= 5
    assert caplog.text == ""
