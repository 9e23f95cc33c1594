"""The calls of a Kubo node's RPC: every one a POST, its answer bytes, JSON, or JSON line by line.

An error may come as a status with a JSON body, as a line in mid-stream, as a trailer after the stream, or as a
connection cut short; all four end as one typed error here.
"""

import io
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlencode

from ...cid import Buffer
from ...errors import AccessDenied, CyberKVError, PeerMisbehaved, RpcFailed, TierFull
from ..line import Answer, Body, Line, Patience
from .address import Credential, RpcAddress

MAX_LINE_BYTES: Final = 1 << 20
MAX_IDLE_LINES: Final = 4096
"""Lines of one answer that may come before it is renewed: a node tells its progress twice a second."""
NO_OPTIONS: Final[Mapping[str, str]] = {}
READING: Final = Patience(block_s=600.0, read_s=120.0)
WRITING: Final = Patience(block_s=600.0, read_s=600.0)
"""A node answers an import only when its disk is done, and is silent while it compares two pins."""
_FULL: Final = ("no space left", "disk quota exceeded", "not enough space")


class KuboRpc:
    """One connection to one node. Not safe for use by several threads."""

    def __init__(
        self,
        address: RpcAddress,
        credential: Credential | None = None,
        *,
        patience: Patience = READING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.name = f"kubo:{address}"
        self._credential = credential
        self._patience = patience
        self._clock = clock
        self._line = Line(address, patience, clock)
        self._idle_lines = 0

    @contextmanager
    def call(
        self,
        command: str,
        *args: str,
        most_bytes: int = MAX_LINE_BYTES,
        options: Mapping[str, str] = NO_OPTIONS,
        body: "Multipart | None" = None,
    ) -> Iterator[Answer]:
        """Call `command` and give the answer, still unread and at most `most_bytes` long until renewed.

        A body may take as long as it likes, while the node goes on reading it. Raises `PeerUnreachable`,
        `PeerMisbehaved`, `AccessDenied`, `RpcFailed`, and `TierFull` where the node's disk is full.
        """
        words = [("arg", arg) for arg in args] + list(options.items())
        target = f"/api/v0/{command}" + (f"?{urlencode(words)}" if words else "")
        headers = {"Authorization": self._credential.header} if self._credential else {}
        if body is not None:
            headers |= body.headers
        chunks = None if body is None else self._renewing(body, most_bytes)
        with self._discreet():
            answer = self._line.ask(target, headers, most_bytes, method="POST", body=chunks)
            try:
                with self._line.guarded():
                    if answer.status != 200:
                        raise self._refused(command, answer)
                    yield answer
                    if reason := answer.trailers.get("x-stream-error"):
                        raise self._failed(command, 200, reason)
            finally:
                if not answer.isclosed():
                    self._line.close()

    def json(self, command: str, *args: str, options: Mapping[str, str] = NO_OPTIONS) -> Any:
        """Call and give the one JSON value of the answer."""
        with self.call(command, *args, options=options) as answer:
            return self._parse(command, answer.read())

    def lines(
        self, command: str, *args: str, options: Mapping[str, str] = NO_OPTIONS, body: "Multipart | None" = None
    ) -> Iterator[dict[str, Any]]:
        """Call and give the answer's JSON objects as they come. A line that tells of an error is raised.

        All lines come in the time of one, and not without end, unless whoever sees them get anywhere calls `renew`.
        """
        with self.call(command, *args, options=options, body=body) as answer:
            self._idle_lines = 0
            body_lines = io.BufferedReader(Body(answer))
            while line := body_lines.readline(MAX_LINE_BYTES + 1):
                self._idle_lines += 1
                if len(line) > MAX_LINE_BYTES or self._idle_lines > MAX_IDLE_LINES:
                    what = "a line" if len(line) > MAX_LINE_BYTES else "lines"
                    raise PeerMisbehaved(f"{self.name} answers {command} with {what} without end", peer=self.name)
                self._line.meter.allow(MAX_LINE_BYTES)
                value = self._parse(command, line)
                if not isinstance(value, dict):
                    raise self._senseless(command, line)
                if value.get("Type") == "error":
                    raise self._failed(command, 200, str(value.get("Message")))
                yield value

    def renew(self, most_bytes: int = MAX_LINE_BYTES) -> None:
        """Let the answer being read go on for another `most_bytes`, with all the time that one answer has."""
        self._idle_lines = 0
        self._line.meter.renew(most_bytes)

    def hang_up(self) -> None:
        """Fail what is under way in another thread; the next call opens a new connection."""
        self._line.hang_up()

    def another(self) -> "KuboRpc":
        """Give a second connection to the same node, not open yet."""
        return KuboRpc(self.address, self._credential, patience=self._patience, clock=self._clock)

    def end(self) -> None:
        """Fail what is under way in another thread, and every later call."""
        self._line.end()

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        self._line.close()

    def _renewing(self, body: "Multipart", most_bytes: int) -> Iterator[Buffer]:
        for chunk in body:
            yield chunk
            self._line.meter.renew(most_bytes)

    @contextmanager
    def _discreet(self) -> Iterator[None]:
        """Take out of an error what a node or a proxy before it may have repeated of the credential."""
        try:
            yield
        except CyberKVError as error:
            if self._credential is not None:
                error.message = self._credential.hidden_in(error.message)
                error.args = (error.message,)
                for name, value in error.data.items():
                    error.data[name] = self._credential.hidden_in(value) if isinstance(value, str) else value
            raise

    def _parse(self, command: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._senseless(command, data) from error

    def _senseless(self, command: str, data: bytes) -> PeerMisbehaved:
        return PeerMisbehaved(
            f"{self.name} answers {command} with {self._excerpt(data, 80)!r}, which is no JSON object",
            hint="is this the RPC address of a Kubo node, and not its gateway?", peer=self.name,
        )  # fmt: skip

    def _refused(self, command: str, answer: Answer) -> CyberKVError:
        status, data = answer.status, answer.read(MAX_LINE_BYTES)
        if status in (401, 403):
            return AccessDenied(
                f"{self.name} does not let us call {command} (status {status})",
                hint="give a credential that API.Authorizations of the node knows, for this path",
                peer=self.name, command=command, status=status,
            )  # fmt: skip
        if 300 <= status < 400:
            return PeerMisbehaved(f"{self.name} redirects {command}; redirects are not followed", peer=self.name)
        try:
            reason = str(json.loads(data)["Message"])
        except (ValueError, RecursionError, KeyError, TypeError):
            reason = self._excerpt(data, 120).strip()
        return self._failed(command, status, reason)

    def _failed(self, command: str, status: int, reason: str) -> RpcFailed | TierFull:
        reason = self._excerpt(reason.encode(errors="replace"), 400)
        if any(words in reason for words in _FULL):
            return TierFull(
                f"{self.name} has no room: {reason}",
                hint="make room on the node, for instance with `ipfs repo gc`, then repeat: what it has pinned stays",
                peer=self.name, command=command, status=status, reason=reason,
            )  # fmt: skip
        unknown = status in (404, 405)
        return RpcFailed(
            f"{self.name} failed to {command}: {reason}",
            hint="is this the RPC of a Kubo node, and not its gateway?" if unknown else "",
            peer=self.name, command=command, status=status, reason=reason,
        )  # fmt: skip

    def _excerpt(self, data: bytes, chars: int) -> str:
        """Give the beginning of foreign text as one printable line, without the credential: cut, it is not found."""
        text = data.decode(errors="replace")
        if self._credential is not None:
            text = self._credential.hidden_in(text)
        return "".join(each if each.isprintable() else " " for each in text[:chars])


class Multipart:
    """One file as the body of a call, made while it is sent."""

    def __init__(self, chunks: Iterable[Buffer], size_bytes: int | None = None) -> None:
        """Prepare. With `size_bytes`, the sum of all chunks, they are sent as they are; without, each is copied."""
        self._chunks = chunks
        boundary = secrets.token_hex(16)
        lines = (
            f"--{boundary}", 'Content-Disposition: form-data; name="file"; filename="blocks.car"',
            "Content-Type: application/octet-stream", "", "",
        )  # fmt: skip
        self._head, self._end = "\r\n".join(lines).encode(), f"\r\n--{boundary}--\r\n".encode()
        self.headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        if size_bytes is not None:
            self.headers["Content-Length"] = str(len(self._head) + size_bytes + len(self._end))

    def __iter__(self) -> Iterator[Buffer]:
        yield self._head
        yield from self._chunks
        yield self._end
