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
from ...errors import AccessDenied, PeerError, PeerMisbehaved, RpcFailed
from ..line import Answer, Body, Line, Patience
from .address import Credential, RpcAddress

MAX_LINE_BYTES: Final = 1 << 20
NO_OPTIONS: Final[Mapping[str, str]] = {}
_DEFAULT: Final = Patience(block_s=600.0, read_s=120.0)
"""A node answers an import or a pin only when its disk is done."""


class KuboRpc:
    """One connection to one node. Not safe for use by several threads."""

    def __init__(
        self,
        address: RpcAddress,
        credential: Credential | None = None,
        *,
        patience: Patience = _DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.name = f"kubo:{address}"
        self._credential = credential
        self._line = Line(address, patience, clock)

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

        Raises `PeerUnreachable`, `PeerMisbehaved`, `AccessDenied`, `RpcFailed`.
        """
        words = [("arg", arg) for arg in args] + list(options.items())
        target = f"/api/v0/{command}" + (f"?{urlencode(words)}" if words else "")
        headers = {"Authorization": self._credential.header} if self._credential else {}
        if body is not None:
            headers["Content-Type"] = body.content_type
        answer = self._line.ask(target, headers, most_bytes, method="POST", body=body)
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
        """Call and give the answer's JSON objects as they come. A line that tells of an error is raised."""
        with self.call(command, *args, options=options, body=body) as answer:
            body_lines = io.BufferedReader(Body(answer))
            while line := body_lines.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise PeerMisbehaved(f"{self.name} answers {command} with a line without end", peer=self.name)
                self._line.meter.renew(MAX_LINE_BYTES)
                value = self._parse(command, line)
                if not isinstance(value, dict):
                    raise PeerMisbehaved(f"{self.name} answers {command} with {line[:80]!r}", peer=self.name)
                if value.get("Type") == "error":
                    raise self._failed(command, 200, str(value.get("Message")))
                yield value

    def renew(self, most_bytes: int) -> None:
        """Let the answer being read go on for another `most_bytes`."""
        self._line.meter.renew(most_bytes)

    def abort(self) -> None:
        """Fail what is under way in another thread."""
        self._line.hang_up()

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        self._line.close()

    def _parse(self, command: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PeerMisbehaved(
                f"{self.name} answers {command} with {data[:80]!r}, which is no JSON",
                hint="is this the RPC address of a Kubo node, and not its gateway?", peer=self.name,
            ) from error  # fmt: skip

    def _refused(self, command: str, answer: Answer) -> PeerError | AccessDenied:
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
            reason = data[:120].decode(errors="replace").strip()
        return self._failed(command, status, reason)

    def _failed(self, command: str, status: int, reason: str) -> RpcFailed:
        return RpcFailed(
            f"{self.name} failed to {command}: {reason[:400]}", peer=self.name, command=command, status=status,
            reason=reason[:400],
        )  # fmt: skip


class Multipart:
    """One file as the body of a call, made while it is sent."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self._boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={self._boundary}"

    def __iter__(self) -> Iterator[Buffer]:
        head = (
            'Content-Disposition: form-data; name="file"; filename="blocks.car"',
            "Content-Type: application/octet-stream",
        )
        yield "\r\n".join((f"--{self._boundary}", *head, "", "")).encode()
        yield from self._chunks
        yield f"\r\n--{self._boundary}--\r\n".encode()
