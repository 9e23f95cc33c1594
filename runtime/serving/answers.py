"""Answers of the chat-completions protocol as JSON."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ...cybergraph.cid import Cid
from ...cybergraph.errors import CyberKVError, LimitExceeded


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn cost."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, those whose K and V were loaded or shared instead of computed."""
    completion_tokens: int

    def as_json(self) -> dict[str, Any]:
        """Give it as the protocol does."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a turn is recorded. Goes into answers under `cyberkv`, which other clients pass over."""

    root: Cid
    name: str

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {"root": str(self.root), "conversation": self.name}

    def headers(self) -> dict[str, str]:
        """Give it as headers of an answer: the name percent-encoded, for a header has no other letters than ASCII."""
        return {"CyberKV-Root": str(self.root), "CyberKV-Conversation": quote(self.name, safe="")}


@dataclass(frozen=True, slots=True)
class Heading:
    """What all parts of one answer have in common."""

    id: str
    created: int
    """Whole seconds since 1970."""
    model: str

    def completion(self, text: str, finish: str, usage: Usage, kept: Kept | None) -> dict[str, Any]:
        """Give a whole answer."""
        choice = {
            "index": 0, "message": {"role": "assistant", "content": text, "refusal": None}, "logprobs": None,
            "finish_reason": finish,
        }  # fmt: skip
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage.as_json(), **_extra(kept)}

    def chunk(self, delta: dict[str, str], finish: str | None = None, kept: Kept | None = None) -> dict[str, Any]:
        """Give one piece of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **_extra(kept)}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Give the last piece of a stream that was asked to say what it cost."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage.as_json()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _extra(kept: Kept | None) -> dict[str, Any]:
    return {} if kept is None else {"cyberkv": kept.as_json()}


_STATUS = {2: 400, 3: 404, 4: 500, 5: 403, 6: 403, 7: 502, 8: 503}


def error_status(error: CyberKVError) -> int:
    """Give the HTTP status of an error."""
    if isinstance(error, LimitExceeded):
        return 413
    return _STATUS.get(error.exit_code, 500)


def error_json(message: str, kind: str, *, param: object = None, code: str | None = None) -> dict[str, Any]:
    """Give an error as the protocol does."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_of(error: CyberKVError) -> dict[str, Any]:
    """Give one of this program's errors as the protocol does; its kind is the code."""
    status = error_status(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    return error_json(message, kind, param=error.data.get("param"), code=error.kind)
