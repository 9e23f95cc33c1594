"""Text to tokens and back, and conversations to text.

A model folder may hold `tokenizer.json` (of the `tokenizers` library), special tokens in
`tokenizer_config.json`, and a chat template in `chat_template.jinja` or in that file. Without a
`tokenizer.json` a model takes tokens only. The digests of tokenizer and template are part of the identity.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer

from ...cybergraph.errors import Corrupt, LimitExceeded, UnsupportedModel
from ...cybergraph.identity import digest
from .files import MAX_TEMPLATE_CHARS, read_json
from .identity import ABSENT
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
        self, tokenizer: Tokenizer, *, digest: str, template: ChatTemplate | None, template_digest: str,
        eos_ids: frozenset[int],
    ) -> None:  # fmt: skip
        self._tokenizer = tokenizer
        self._template = template
        self.digest = digest
        """`blake3:<hex>` of `tokenizer.json` in canonical form."""
        self.template_digest = template_digest
        """`blake3:<hex>` of the chat template, or `none`."""
        self.eos_ids = eos_ids
        """Tokens that end an answer."""

    @classmethod
    def load(cls, folder: Path, *, known_digest: str | None = None) -> Self | None:
        """Read the tokenizer of a folder; None if it has none. Raises `Corrupt` or `LimitExceeded`.

        With `known_digest`, the caller knows the digest of this very file: it is not computed. The chat template is
        compiled when it is used, or by `check_template`.
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
        return cls(
            tokenizer,
            digest=known_digest or digest(canonical.encode()),
            template=None if source is None else ChatTemplate(source, special),
            template_digest=ABSENT if source is None else digest(source.encode()),
            eos_ids=_eos_ids(folder, tokenizer, special),
        )

    def check_template(self) -> None:
        """Compile the chat template, if there is one. Raises `Corrupt`, `LimitExceeded`."""
        if self._template is not None:
            self._template.check()

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

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> str:
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
        histories = [
            [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": marker},
                {"role": "user", "content": user_text},
            ]
            for marker in _MARKERS
        ]
        texts = self._template.render_all(histories, generate=True)
        parts = [text.partition(marker) for text, marker in zip(texts, _MARKERS, strict=True)]
        _, found, after = parts[0]
        if not found or not parts[1][1] or after != parts[1][2]:
            raise UnsupportedModel(
                "the chat template rewrites earlier answers, so a conversation cannot be continued in place",
                hint="start a new conversation with the whole history",
                field="chat_template",
            )
        return after


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
            found[name] = _sound(text, name)
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
        entries = (entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default")
        source = next(entries, {}).get("template")
    return _sound(source, "chat_template") if isinstance(source, str) else None


def _sound(text: str, field: str) -> str:
    """Give the text back. Raises `Corrupt` for half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Corrupt(f"{field} in tokenizer_config.json is not Unicode text: {error}", field=field) from error
    return text


def _eos_ids(folder: Path, tokenizer: Tokenizer, special: dict[str, str]) -> frozenset[int]:
    ids: list[object] = [tokenizer.token_to_id(special["eos_token"])] if "eos_token" in special else []
    for name in ("generation_config.json", "config.json"):
        value = _optional_json(folder / name).get("eos_token_id")
        ids += value if isinstance(value, list) else [value]
    return frozenset(token for token in ids if type(token) is int)
