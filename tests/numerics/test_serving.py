"""What stands between an HTTP client and the scheduler: clients that leave, and faults that belong to nobody."""

import asyncio
import errno
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect

from cyberkv.cybergraph.errors import LimitExceeded, OutOfRange
from cyberkv.runtime.batching.front import Front, Ticket
from cyberkv.runtime.batching.request import Finish, Request
from cyberkv.runtime.models.tokenizer import TextCodec
from cyberkv.runtime.serving.answers import Usage
from cyberkv.runtime.serving.app import Offer, build_chat_app
from cyberkv.runtime.serving.turns import FEW_CHARS, Deliver, Ended, Turns, encode_at_most
from tests.numerics.test_batching import Engines

Message = dict[str, Any]
ENDED = Ended("stop", Usage(1, 0, 1), None)


class Cancellable:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Scripted:
    """Turns of which everything is known."""

    def __init__(self, *events: str | Ended | Exception) -> None:
        self.events = events
        self.ticket = Cancellable()

    def begin(self, _: object, deliver: Deliver) -> Ticket:
        for event in self.events:
            deliver(event)
        return cast("Ticket", self.ticket)


def exchange(
    turns: Scripted, *, stream: bool, leaves: bool, method: str = "POST", path: str = "/v1/chat/completions"
) -> list[Message]:
    """Ask, and give what was sent; who `leaves` has gone before there is an answer."""
    app = build_chat_app(
        Offer(cast("Turns", turns), "m", "cid", now_s=lambda: 0, new_id=lambda: "id", is_own=lambda _: True)
    )
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "x"}]}).encode()
    head = [(b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": b"", "headers": head,
        "query_string": b"", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
        "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    coming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if coming:
            return coming.pop()
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def run() -> None:
        with suppress(OSError, RuntimeError, ClientDisconnect):  # which the server is told, too
            await asyncio.wait_for(app(scope, receive, send), 30)

    asyncio.run(run())
    return sent


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("events", [(), ("some ", "text")], ids=["before the first token", "after it"])
def test_who_leaves_ends_the_turn(events: tuple[str, ...], stream: bool) -> None:
    turns = Scripted(*events)
    sent = exchange(turns, stream=stream, leaves=True)
    assert turns.ticket.cancelled
    assert not [each for each in sent if each.get("status") == 500]  # it is no fault


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, b"POST"),
        ("PUT", "/v1/chat/completions", 405, b"POST"),
        ("POST", "/v1/models", 405, b"GET, HEAD"),
        ("DELETE", "/v1/models/m", 405, b"GET, HEAD"),
        ("GET", "/v1/models/m", 200, None),
        ("GET", "/v1/completions", 404, None),
    ],
)
def test_another_method_is_told_which_there_is(method: str, path: str, status: int, allow: bytes | None) -> None:
    head = exchange(Scripted(), stream=False, leaves=False, method=method, path=path)[0]
    assert (head["status"], dict(head["headers"]).get(b"allow")) == (status, allow)


@pytest.mark.parametrize("stream", [True, False])
def test_who_stays_is_answered(stream: bool) -> None:
    start, *parts = exchange(Scripted("some ", "text", ENDED), stream=stream, leaves=False)
    assert start["status"] == 200
    said = b"".join(part["body"] for part in parts)
    assert (b"some text" in said) is not stream
    assert b"text" in said


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("a fault"), 500),
        (OSError(errno.ENOSPC, "fault"), 503),
        (OutOfRange("x"), 400),
        (LimitExceeded("x"), 413),
    ],
)
def test_a_fault_is_an_answer_too(error: Exception, status: int, stream: bool) -> None:
    start, *parts = exchange(Scripted(error), stream=stream, leaves=False)
    assert start["status"] == status
    said = json.loads(b"".join(part["body"] for part in parts))["error"]
    assert (said["type"] == "server_error") == (status >= 500)
    assert "fault" not in said["message"]  # it may say too much of this machine


def test_a_fault_of_the_scheduler_leaves_nobody_waiting(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    with Front(tiny_engine("llama")) as front:
        scheduler, step = front._scheduler, front._scheduler.schedule
        request = Request(tuple(range(40)), max_tokens=30)

        def broken() -> Any:
            if any(job.said.tokens for job in scheduler.jobs):
                raise RuntimeError("a fault")
            return step()

        monkeypatch.setattr(scheduler, "schedule", broken)
        tickets = [front.submit(request), front.submit(request)]
        outcomes = [ticket.outcome(60) for ticket in tickets]
        assert [outcome.finish for outcome in outcomes] == [Finish.FAILED] * 2
        assert all("a fault" in str(outcome.error) for outcome in outcomes)
        assert scheduler.check_integrity() == []
        monkeypatch.setattr(scheduler, "schedule", step)
        assert front.submit(request).outcome(60).finish is Finish.LENGTH


def test_rows_that_cannot_be_given_back_hold_nobody_up(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    with Front(tiny_engine("llama")) as front:
        scheduler = front._scheduler

        def broken(*_: object) -> Any:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patch:
            patch.setattr(scheduler._seats, "leave", broken)
            assert front.submit(Request((1, 2, 3), max_tokens=2)).outcome(60).finish is Finish.FAILED
        assert front.submit(Request((1, 2, 3), max_tokens=2)).outcome(60).finish is Finish.LENGTH


class Letters:
    """A token a letter. Counts what it was given to read."""

    def __init__(self) -> None:
        self.read = 0

    def encode(self, text: str, *, special: bool) -> list[int]:
        assert not special
        self.read += len(text)
        return list(map(ord, text))


@pytest.mark.parametrize("length", [0, 5, 10, 10 * FEW_CHARS, 10_000])
def test_a_text_that_can_never_fit_is_not_read_to_its_end(length: int) -> None:
    letters = Letters()
    encode: Callable[[], object] = lambda: encode_at_most(cast("TextCodec", letters), "a" * length, 10)  # noqa: E731
    if length <= 10 * FEW_CHARS:
        assert encode() == [97] * length
    else:
        with pytest.raises(OutOfRange, match="10 positions"):
            encode()
        assert letters.read == 10 * FEW_CHARS
