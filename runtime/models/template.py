"""Chat templates: jinja2 in a sandbox, in a process of its own, with the helpers that templates in the field expect.

>>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", {})
>>> template.render([{"role": "user", "content": "Hi"}], generate=False)
'[user]Hi'
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, cast

from ...cybergraph.errors import Corrupt, LimitExceeded, Refused
from .files import MAX_TEMPLATE_CHARS

if TYPE_CHECKING:
    from .rendering import Reply, Request

MAX_RENDERED_BYTES: Final = 1 << 23
"""Text of one call, as UTF-8: no model here takes more than a million tokens, of some four bytes each."""
MAX_REPLY_BYTES: Final = 6 * MAX_RENDERED_BYTES + (1 << 16)
"""JSON writes a control character in six bytes."""
MAX_CPU_S: Final = 5
"""Processor time of one render; those in the field take milliseconds."""
MAX_MEMORY_BYTES: Final = 1 << 30

Message = Mapping[str, str]
"""`role` (system, user, assistant) and `content`."""


class ChatTemplate:
    """A template, compiled when it is used. `variables` are the special tokens by name (`bos_token`, ...).

    The clock is absent: a template that asks for the date without checking that it can is refused. Each call takes the
    start of a process, about 50 ms.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise LimitExceeded(f"the chat template is over {MAX_TEMPLATE_CHARS} characters", field="chat_template")
        self._source = source
        self._variables = dict(variables)

    def check(self) -> None:
        """Compile the template. Raises `Corrupt` if it does not, `LimitExceeded` if that never ends."""
        self.render_all([], generate=False)

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """Write a conversation as the model expects it; with `generate`, opened for the next answer.

        Raises `Refused` with what the template objects to, `LimitExceeded` for one that takes too much time, memory
        or text, `Corrupt` for one that does not compile.
        """
        [text] = self.render_all([messages], generate=generate)
        return text

    def render_all(self, conversations: Sequence[Sequence[Message]], *, generate: bool) -> list[str]:
        """Write several conversations in one process. Raises as `render`."""
        request: Request = {
            "source": self._source,
            "variables": self._variables,
            "conversations": [[dict(message) for message in messages] for messages in conversations],
            "generate": generate,
            "most_bytes": MAX_RENDERED_BYTES,
            "cpu_s": MAX_CPU_S,
            "memory_bytes": MAX_MEMORY_BYTES,
        }
        reply = _reply(request)
        if "malformed" in reply:
            raise Corrupt(f"the chat template does not compile: {reply['malformed']}", field="chat_template")
        if "exceeded" in reply:
            raise _exceeded(reply["exceeded"])
        if "refused" in reply:
            raise Refused(
                f"the chat template refuses these messages: {reply['refused']}",
                hint="most templates take an optional system message, then user and assistant in turn",
                field="chat_template",
            )
        return reply["texts"]


def _reply(request: "Request") -> "Reply":
    """Have a process serve the request, and read no more from it than a bounded template can write."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "cyberkv.runtime.models.rendering"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C is ours alone to answer
    ) as child:
        stdin, stdout, stderr = cast("tuple[IO[bytes], ...]", (child.stdin, child.stdout, child.stderr))
        try:
            with suppress(BrokenPipeError), stdin:  # it reads all before it writes anything
                stdin.write(json.dumps(request).encode())
            answer = stdout.read(MAX_REPLY_BYTES + 1)
            if len(answer) > MAX_REPLY_BYTES:
                raise _exceeded(f"makes an answer of over {MAX_REPLY_BYTES >> 20} MiB")
            failure = stderr.read(1 << 16)
        except BaseException:
            child.kill()
            raise
    if child.returncode < 0:  # the bound on processor time ends a process by a signal
        raise _exceeded(f"takes over {MAX_CPU_S} s of processor time, or crashes")
    if child.returncode:
        raise RuntimeError(f"rendering failed: {failure.decode(errors='replace')}")
    reply: Reply = json.loads(answer)
    return reply


def _exceeded(what: str) -> LimitExceeded:
    return LimitExceeded(
        f"the chat template {what}", hint="`prefill` records a text without the template", field="chat_template"
    )
