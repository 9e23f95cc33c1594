"""A process that renders one chat template and ends: `python -m cyberkv.runtime.models.rendering`.

A template is a program that somebody else wrote. Jinja's sandbox keeps it away from Python's objects, but neither from
running on nor from filling memory, which a single expression can (`10 ** 10 ** 10`, folded while it compiles). So it
compiles and runs in a process of its own, where the operating system bounds processor time and memory.

Reads a `Request` as JSON from stdin, writes a `Reply` as JSON to stdout. Standard library and jinja2 only.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import NotRequired, TypedDict

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Request(TypedDict):
    """What to render."""

    source: str
    variables: dict[str, str]
    conversations: list[list[dict[str, str]]]
    """None of them: only see whether the template compiles."""
    generate: bool
    most_bytes: int
    """Longest text, as UTF-8, of all conversations together."""
    cpu_s: int
    memory_bytes: int


class Reply(TypedDict):
    """The texts, or one of the others: why there are none."""

    texts: NotRequired[list[str]]
    malformed: NotRequired[str]
    """The template does not compile."""
    refused: NotRequired[str]
    """The template objects to the messages, or fails over them."""
    exceeded: NotRequired[str]
    """A bound that it reached."""


_REASON_CHARS = 1000
"""As much as is shown of what a template objects to."""
_FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


def main() -> None:
    """Serve one request."""
    request: Request = json.load(sys.stdin)
    bounds = {
        resource.RLIMIT_CPU: request["cpu_s"],
        resource.RLIMIT_AS: request["memory_bytes"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in bounds.items():
        resource.setrlimit(kind, (most, most))
    answer = b""
    with suppress(MemoryError):  # only behind this block is what filled the memory let go
        answer = _encode(_reply(request))
    sys.stdout.buffer.write(
        answer or _encode(Reply(exceeded=f"takes over {request['memory_bytes'] >> 20} MiB of memory"))
    )


def _encode(reply: Reply) -> bytes:
    return json.dumps(reply, ensure_ascii=False).encode(errors="replace")


def _reply(request: Request) -> Reply:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    try:
        template = environment.from_string(request["source"])
    except _FAILURES as error:
        return Reply(malformed=str(error)[:_REASON_CHARS])
    texts, room_bytes = [], request["most_bytes"]
    try:
        for messages in request["conversations"]:
            context = {
                **request["variables"],
                "messages": messages,
                "add_generation_prompt": request["generate"],
                "tools": None,
                "documents": None,
            }
            parts = []
            for part in template.generate(context):
                parts.append(part)
                room_bytes -= len(part.encode())  # fails for half a surrogate pair, which is no text
                if room_bytes < 0:
                    return Reply(exceeded=f"writes over {request['most_bytes'] >> 20} MiB")
            texts.append("".join(parts))
    except _FAILURES as error:
        return Reply(refused=str(error)[:_REASON_CHARS])
    return Reply(texts=texts)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass these by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    # jinja's own filter escapes for HTML, which a model would read as text.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """Accept `{% generation %}`, with which templates mark the model's own text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


if __name__ == "__main__":
    main()
