"""Requests of the chat-completions protocol: what is understood, and the refusal of what would be ignored.

A field that would change the answer and is not supported is refused by name, never passed over: a client that asks for
tools or two answers must not believe that it got them. Fields that only describe the caller are ignored.

>>> asked = parse_chat({"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8})
>>> asked.messages, asked.max_tokens, asked.stream
(({'role': 'user', 'content': 'Hello'},), 8, False)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...cybergraph.errors import BadReference

MOST_MESSAGES: Final = 4096
MOST_STOPS: Final = 4
"""As the protocol says."""
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,), "top_p": (1, 1.0), "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0), "logit_bias": ({},),
    "logprobs": (False,), "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "audio": (), "prediction": (), "web_search_options": (), "reasoning_effort": ("none",),
}  # fmt: skip
"""Fields that are not supported, and the values that ask for nothing."""

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One turn that is asked for."""

    model: str
    messages: tuple[Message, ...]
    """Each a `role` (system, user, assistant) and a `content`, never empty."""
    max_tokens: int | None
    """None: until the model ends its answer or its positions are used up."""
    temperature: float
    """0 unless asked for otherwise: what was not asked to vary does not."""
    seed: int
    stop: tuple[str, ...]
    """Texts that end the answer; they do not appear in it."""
    stream: bool
    include_usage: bool
    """Whether a stream ends with what it cost."""
    conversation: str | None
    """A recorded conversation to go on from: then the messages are one new turn of the user."""


def parse_chat(body: object) -> ChatRequest:
    """Read the JSON body of a request. Raises `BadReference` with the field as `param`."""
    if not isinstance(body, Mapping):
        raise bad("the body must be a JSON object", None)
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise bad(f"{name} is not supported here", name, "leave it out")
    options = _of(body, "stream_options", Mapping, {})
    conversation = _of(body, "conversation", str, None)
    messages = _messages(body.get("messages"))
    if conversation is not None and [message["role"] for message in messages] != ["user"]:
        raise bad("with conversation, messages must be one message of the user", "messages", "send the new turn only")
    return ChatRequest(
        model=_of(body, "model", str, None) or _missing("model"),
        messages=messages,
        max_tokens=_count(body, "max_completion_tokens", _count(body, "max_tokens", None)),
        temperature=_number(body, "temperature", 0.0, 2.0),
        seed=_of(body, "seed", int, 0),
        stop=_stops(body.get("stop")),
        stream=_of(body, "stream", bool, default=False),
        include_usage=_of(options, "include_usage", bool, default=False),
        conversation=conversation,
    )


def bad(message: str, param: str | None, hint: str = "") -> BadReference:
    """Build the refusal of one field."""
    return BadReference(message, hint=hint, param=param)


def _missing(name: str) -> Any:
    raise bad(f"{name} is missing", name)


def _of(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Give a field of one type; absent and null are the default."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise bad(f"{name} must be {_KINDS[kind]}", name)
    return value


_KINDS: Final[Mapping[type, str]] = {str: "text", int: "an integer", bool: "true or false", Mapping: "an object"}


def _count(body: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value: int | None = _of(body, name, int, default)
    if value is not None and value < 0:
        raise bad(f"{name} must not be negative", name)
    return value


def _number(body: Mapping[str, Any], name: str, default: float, most: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise bad(f"{name} must be a number from 0 to {most:g}", name)
    return float(value)


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise bad("stop must be a text or a list of texts", "stop")
    if len(stops) > MOST_STOPS:
        raise bad(f"stop may be {MOST_STOPS} texts at most", "stop")
    return tuple(_sound(each, "stop") for each in stops)


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise bad("messages must be a list with at least one message", "messages")
    if len(value) > MOST_MESSAGES:
        raise bad(f"messages may be {MOST_MESSAGES} at most", "messages")
    return tuple(_message(each, f"messages[{i}]") for i, each in enumerate(value))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise bad(f"{where} must be an object", where)
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    if value.get("tool_calls") or value.get("function_call"):
        raise bad("calls of tools are not supported here", f"{where}.tool_calls")
    return {"role": _ROLES[role], "content": _content(value.get("content"), f"{where}.content")}


def _content(value: object, where: str) -> str:
    if isinstance(value, str):
        return _sound(value, where)
    if not isinstance(value, Sequence) or not value:
        raise bad(f"{where} must be text", where)
    parts = []
    for part in value:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            # What an image says would not be in the name of the blocks, so it must not be in them.
            raise bad(f"{where} may hold parts of type text only", where, "the model takes nothing but text")
        parts.append(part["text"])
    return _sound("".join(parts), where)


def _sound(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad(f"{where} is not Unicode text: half a surrogate pair", where) from error
    return text
