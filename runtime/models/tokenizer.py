"""Text to tokens and back, and conversations to text.

A model folder may hold `tokenizer.json` (of the `tokenizers` library), special tokens in
`tokenizer_config.json`, and a chat template in `chat_template.jinja` or in that file. Without a
`tokenizer.json` a model takes tokens only. The digests of tokenizer and template are part of the identity.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tokenizers import Tokenizer

from ...cybergraph.errors import Corrupt, LimitExceeded, UnsupportedModel
from ...cybergraph.identity import digest
from .files import MAX_TEMPLATE_CHARS, read_json
from .identity import ABSENT

if TYPE_CHECKING:
    from .template import ChatTemplate, Message

_SPECIAL_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_REPLACEMENT: Final = "\ufffd"
_PARAGRAPH: Final = "\n\n"

# Words that no template takes for anything else; two, to see that the text after them is the same.
_MARKERS: Final = ("xqzAnswerOne", "xqzAnswerTwo")


class TextCodec:
    """Tokenizer and chat template of one model."""

    def __init__(
        self, tokenizer: Tokenizer, *, digest: str, template: tuple[str, dict[str, str]] | None,
        template_digest: str, eos_ids: frozenset[int],
    ) -> None:  # fmt: skip
        self._tokenizer = tokenizer
        self._source = template
        self.digest = digest
        """`blake3:<hex>` of `tokenizer.json` in canonical form."""
        self.template_digest = template_digest
        """`blake3:<hex>` of the chat template, or `none`."""
        self.eos_ids = eos_ids
        """Tokens that end an answer."""

    @classmethod
    def load(cls, folder: Path, *, known_digest: str | None = None) -> Self | None:
        """Read the tokenizer of a folder; None if it has none. Raises `Corrupt` or `LimitExceeded`.

        With `known_digest`, the caller knows the digest of this very file and that all of this was read once
        before: the digest is not computed, and the chat template is compiled when it is used.
        """
        path = folder / "tokenizer.json"
        if not path.exists():
            return None
        canonical = "" if known_digest else _canonical(path)
        try:
            tokenizer = Tokenizer.from_str(canonical) if canonical else Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise Corrupt(f"{path} is not a tokenizer: {error}", path=str(path)) from error
        # Settings of a training run: they would cut or pad what a person asks to encode.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        settings = _optional_json(folder / "tokenizer_config.json")
        special = _special_tokens(settings)
        source = _template_source(folder, settings)
        codec = cls(
            tokenizer,
            digest=known_digest or digest(canonical.encode()),
            template=None if source is None else (source, special),
            template_digest=ABSENT if source is None else digest(source.encode()),
            eos_ids=_eos_ids(folder, tokenizer, special),
        )
        if known_digest is None:
            _ = codec._template
        return codec

    @cached_property
    def _template(self) -> "ChatTemplate | None":
        if self._source is None:
            return None
        from .template import ChatTemplate

        return ChatTemplate(*self._source)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Turn text into tokens.

        `special` adds what the tokenizer puts around a text by itself, such as a BOS; text from `render` and
        `continue_turn` already holds it and is encoded with `special=False`.
        """
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """Turn tokens into text; without `special`, control tokens are left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def stream(self, *, special: bool = False) -> "TextStream":
        """Start to decode tokens as they come."""
        return TextStream(self, special=special)

    def render(self, messages: Sequence["Message"], *, generate: bool = True) -> str:
        """Write a conversation as the model learnt to read it; with `generate`, opened for the next answer.

        Without a chat template it is plain text: the contents as paragraphs, after what the tokenizer puts
        before a text. Raises `Refused` with what the template objects to.
        """
        if self._template is not None:
            return self._template.render(messages, generate=generate)
        start = self.decode(self.encode(""))
        return start + _PARAGRAPH.join(message["content"] for message in messages)

    def continue_turn(self, user_text: str) -> str:
        """Give the text that follows the last word of an answer: end mark, the user's turn, next opening.

        The answer's own end token must not be in the conversation yet, because this text begins with it.
        Without a chat template it is a new paragraph. Raises `UnsupportedModel` for a template whose turns
        depend on the words of earlier answers.
        """
        if self._template is None:
            return _PARAGRAPH + user_text
        first, second = (self._after(marker, user_text) for marker in _MARKERS)
        if first is None or first != second:
            raise UnsupportedModel(
                "the chat template rewrites earlier answers, so a conversation cannot be continued in place",
                hint="start a new conversation with the whole history",
                field="chat_template",
            )
        return first

    def _after(self, marker: str, user_text: str) -> str | None:
        contents = (("user", "Hello"), ("assistant", marker), ("user", user_text))
        text = self.render([{"role": role, "content": content} for role, content in contents])
        _, found, rest = text.partition(marker)
        return rest if found else None


class TextStream:
    """Text of tokens that arrive one by one; half a character is held back until the rest of it arrives.

    The pieces, `finish()` included, join to the text of all tokens.
    """

    def __init__(self, codec: TextCodec, *, special: bool) -> None:
        self._codec = codec
        self._special = special
        self._tokens: list[int] = []
        """The last tokens given out, which a tokenizer may need to place spaces, and the ones held back."""
        self._shown = 0
        """How many of them are given out."""

    def feed(self, token: int) -> str:
        """Take one token and give the text that is now certain, possibly none."""
        self._tokens.append(token)
        return self._take(held_back=_REPLACEMENT)

    def finish(self) -> str:
        """Give what is left, an incomplete character as U+FFFD."""
        return self._take(held_back="")

    def _take(self, held_back: str) -> str:
        before = self._decode(self._tokens[: self._shown])
        text = self._decode(self._tokens)
        if len(text) <= len(before) or (held_back and text.endswith(held_back)):
            return ""
        self._tokens = self._tokens[self._shown :]
        self._shown = len(self._tokens)
        return text[len(before) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._codec.decode(tokens, special=self._special)


def _canonical(path: Path) -> str:
    content = read_json(path)
    if not isinstance(content, dict):
        raise Corrupt(f"{path} is not a map", path=str(path))
    content.update(truncation=None, padding=None)
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _optional_json(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise Corrupt(f"{path} is not a map", path=str(path))
    return content


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_TOKENS:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        if path.stat().st_size > 4 * MAX_TEMPLATE_CHARS:
            raise LimitExceeded(f"{path} is over {MAX_TEMPLATE_CHARS} characters", path=str(path))
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise Corrupt(f"{path} is not UTF-8", path=str(path)) from error
    source = settings.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _eos_ids(folder: Path, tokenizer: Tokenizer, special: dict[str, str]) -> frozenset[int]:
    ids = {tokenizer.token_to_id(special["eos_token"])} if "eos_token" in special else set()
    for name in ("generation_config.json", "config.json"):
        value = _optional_json(folder / name).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [value])
    return frozenset(token for token in ids if type(token) is int)
