"""Chat templates: jinja2 in a sandbox, with the helpers that templates in the field expect.

>>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", {})
>>> template.render([{"role": "user", "content": "Hi"}], generate=False)
'[user]Hi'
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, Never

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...cybergraph.errors import Corrupt, LimitExceeded, Refused
from .files import MAX_TEMPLATE_CHARS

MAX_RENDERED_CHARS: Final = 1 << 26

Message = Mapping[str, str]
"""`role` (system, user, assistant) and `content`."""


class ChatTemplate:
    """A compiled template. `variables` are the special tokens by name (`bos_token`, ...).

    The clock is absent: a template that asks for the date without checking that it can is refused.
    Raises `Corrupt` for a template that does not compile.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise LimitExceeded(f"the chat template is over {MAX_TEMPLATE_CHARS} characters", field="chat_template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except (TemplateError, ValueError, MemoryError, RecursionError) as error:
            raise Corrupt(f"the chat template does not compile: {error}", field="chat_template") from error
        self._variables = dict(variables)

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """Write a conversation as the model expects it; with `generate`, opened for the next answer.

        Raises `Refused` with what the template objects to, and `LimitExceeded` for an endless one.
        """
        context = {
            **self._variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": generate,
            "tools": None,
            "documents": None,
        }
        parts: list[str] = []
        room = MAX_RENDERED_CHARS
        try:
            for part in self._template.generate(context):
                parts.append(part)
                room -= len(part)
                if room < 0:
                    raise LimitExceeded(
                        f"the chat template writes over {MAX_RENDERED_CHARS} characters",
                        field="chat_template",
                    )
        except (
            TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            MemoryError,
            RecursionError,
        ) as error:
            if isinstance(error, LimitExceeded):
                raise
            raise Refused(
                f"the chat template refuses these messages: {error}",
                hint="most templates take an optional system message, then user and assistant in turn",
                field="chat_template",
            ) from error
        return "".join(parts)


def _raise_exception(message: str) -> Never:
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
