"""What a server does, counted for Prometheus: never by CID, path, name or address.

>>> metrics = Metrics()
>>> metrics.refused("rate")
>>> print(metrics.text().decode())  # doctest: +ELLIPSIS
# HELP cyberkv_gateway_requests_total Answers by form and status
...
cyberkv_gateway_refused_total{reason="rate"} 1.0
...
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..foreign import AnyCid
from ..staging import Room, heap_room
from .content import Content, Runs

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FORMS: Final = {
    b"application/vnd.ipld.raw": "raw", b"application/vnd.ipld.car": "car", b"application/octet-stream": "file",
    b"application/vnd.ipld.dag-cbor": "dag-cbor", b"application/vnd.ipld.dag-json": "dag-json",
    b"application/cbor": "cbor", b"application/json": "json", b"text/html": "html", b"text/plain": "text",
}  # fmt: skip


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"cyberkv_gateway_{name}", what, labels, registry=self._registry)

        self.requests = counter("requests", "Answers by form and status", "form", "status")
        self.sent_bytes = counter("sent_bytes", "Bytes of bodies by form", "form")
        self.blocks = counter("blocks", "Blocks read, checked and handed on, one by one or in streams", "way")
        self._refusals = counter("refused", "Requests refused because of a limit", "reason")
        self.running = Gauge(
            "cyberkv_gateway_running", "Answers being sent, by form", ("form",), registry=self._registry
        )

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self._refusals.labels(reason).inc()

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Show a number that somebody else counts, as `cyberkv_<name>`."""
        Gauge(f"cyberkv_{name}", what, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Give everything in Prometheus' text form."""
        return generate_latest(self._registry)


class Counted:
    """An application whose answers are counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        form = ""

        async def counting(message: Message) -> None:
            nonlocal form
            if message["type"] == "http.response.start":
                form = _form(message)
                self._metrics.requests.labels(form, str(message["status"])).inc()
                self._metrics.running.labels(form).inc()
            else:
                self._metrics.sent_bytes.labels(form).inc(len(message.get("body", b"")))
            await send(message)

        try:
            await self._app(scope, receive, counting)
        finally:
            if form:
                self._metrics.running.labels(form).dec()


def _form(message: Message) -> str:
    media_type = dict(message["headers"]).get(b"content-type", b"")
    return _FORMS.get(media_type.partition(b";")[0], "other")


class CountedContent(Content):
    """Content whose blocks are counted as they are handed on."""

    def __init__(self, content: Content, metrics: Metrics) -> None:
        self._content = content
        self._single = metrics.blocks.labels("single")
        self._streamed = metrics.blocks.labels("stream")

    def roots(self) -> list[AnyCid]:
        """See `Content`."""
        return self._content.roots()

    def size_bytes(self, cid: AnyCid) -> int | None:
        """See `Content`."""
        return self._content.size_bytes(cid)

    def get(self, cid: AnyCid) -> bytes:
        """See `Content`."""
        data = self._content.get(cid)
        self._single.inc()
        return data

    def peek(self, cid: AnyCid, count: int) -> bytes:
        """See `Content`. What is looked at and not handed on is not counted."""
        return self._content.peek(cid, count)

    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> Runs:
        """See `Content`."""
        for run in self._content.graph(root, dups=dups, room=room):
            self._streamed.inc(len(run))
            yield run
            del run  # or its memory would stay in use while the next is read

    def edition(self, root: AnyCid) -> str:
        """See `Content`."""
        return self._content.edition(root)
