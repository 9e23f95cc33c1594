"""`tokenizer.json` from the metadata of a GGUF file.

The field `tokenizer.ggml.pre` names how text is split before merging. Splitting otherwise gives other tokens
for the same text, so an unknown name is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from ...cybergraph.errors import MalformedBytes, UnsupportedModel

_KEY: Final = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4
_MAX_TOKEN_CHARS: Final = 1 << 10
"""Longest token of a vocabulary without merges: all its cuts are tried."""
_SPACE: Final = "\u2581"

_BYTES: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_DIGITS: Final = {"type": "Digits", "individual_digits": True}


def _split(numbers: str) -> list[dict[str, Any]]:
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    pattern = {"Regex": f"{contractions}|{words}|{numbers}|{rest}"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return [split, _BYTES | {"use_regex": False}]


_GPT2: Final = [_BYTES | {"use_regex": True}]
_LLAMA3: Final = _split(r"\p{N}{1,3}")
_QWEN2: Final = _split(r"\p{N}")
_PRE_TOKENIZERS: Final[dict[str, list[dict[str, Any]]]] = {
    "gpt-2": _GPT2,
    "smollm": [_DIGITS, *_GPT2],
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
_WHOLE_WORDS_FIRST: Final = {"llama-bpe", "llama3", "llama-v3"}
"""Where a word that is a token as a whole is taken without merging."""


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Build `tokenizer.json`; None for a file without a tokenizer.

    Raises `UnsupportedModel` naming the kind this program does not know, `MalformedBytes` for broken lists.
    """
    kind = metadata.get(_KEY + "model")
    if kind in (None, "none", "no_vocab"):
        return None
    if kind not in ("gpt2", "llama"):
        raise _unsupported("model", kind)
    tokens = _texts(metadata, "tokens")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise MalformedBytes("the vocabulary of the GGUF file holds a token twice", field=_KEY + "tokens")
    parts = _byte_level(metadata, vocab) if kind == "gpt2" else _sentencepiece(metadata, vocab)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, tokens),
        "post_processor": _post_processor(metadata, tokens, parts.pop("add_bos")),
        **parts,
    }


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens, for `tokenizer_config.json`."""
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    tokens = metadata.get(_KEY + "tokens")
    if not isinstance(tokens, list):
        return {}
    ids = {name: metadata.get(f"{_KEY}{short}_token_id") for name, short in names.items()}
    return {name: str(tokens[at]) for name, at in ids.items() if type(at) is int and 0 <= at < len(tokens)}


def _byte_level(metadata: Mapping[str, Any], vocab: dict[str, int]) -> dict[str, Any]:
    pre = metadata.get(_KEY + "pre")
    if pre not in _PRE_TOKENIZERS:
        raise _unsupported("pre", pre)
    merges = [merge.split(" ") for merge in _texts(metadata, "merges")]
    if any(len(merge) != 2 for merge in merges):
        raise MalformedBytes("the GGUF file holds a merge that is not two tokens", field=_KEY + "merges")
    model = {
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre in _WHOLE_WORDS_FIRST,
    }
    return {
        "normalizer": {"type": "NFC"} if _PRE_TOKENIZERS[pre] is _QWEN2 else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "decoder": _BYTES | {"use_regex": True},
        "model": _bpe(vocab, merges, model),
        "add_bos": pre in _WHOLE_WORDS_FIRST,
    }


def _sentencepiece(metadata: Mapping[str, Any], vocab: dict[str, int]) -> dict[str, Any]:
    scores = metadata.get(_KEY + "scores")
    if not isinstance(scores, list) or len(scores) != len(vocab) or max(map(len, vocab)) > _MAX_TOKEN_CHARS:
        raise MalformedBytes("the GGUF file has no score for each token", field=_KEY + "scores")
    unknown = special_tokens(metadata).get("unk_token")
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if metadata.get(_KEY + "add_space_prefix", True) else []
    model = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    words = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [words, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": _bpe(vocab, _merges_from_scores(vocab, scores), model),
        "add_bos": True,
    }


def _merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[list[str]]:
    """Order every way to build a token from two others by the token's score: the best is merged first."""
    ways = [
        (scores[at], len(token[:cut]), len(token) - cut, -vocab[token[:cut]], token, cut)
        for token, at in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    ways.sort(key=lambda way: way[:4], reverse=True)
    return [[token[:cut], token[cut:]] for *_, token, cut in ways]


def _bpe(vocab: dict[str, int], merges: list[list[str]], settings: dict[str, Any]) -> dict[str, Any]:
    fixed = {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return fixed | settings | {"vocab": vocab, "merges": merges}


def _added_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> list[dict[str, Any]]:
    kinds = metadata.get(_KEY + "token_type", [])
    if not isinstance(kinds, list):
        raise MalformedBytes("the GGUF file's token types are not a list", field=_KEY + "token_type")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": at, "content": token, **plain, "special": kind == _CONTROL}
        for at, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]


def _post_processor(metadata: Mapping[str, Any], tokens: list[str], add_bos: bool) -> dict[str, Any]:  # noqa: FBT001
    special = special_tokens(metadata)
    before = [special["bos_token"]] if metadata.get(_KEY + "add_bos_token", add_bos) and "bos_token" in special else []
    after = [special["eos_token"]] if metadata.get(_KEY + "add_eos_token", False) and "eos_token" in special else []

    def template(sequences: str) -> list[dict[str, Any]]:
        marks = [[{"SpecialToken": {"id": token, "type_id": 0}} for token in side] for side in (before, after)]
        return [*marks[0], *({"Sequence": {"id": part, "type_id": 0}} for part in sequences), *marks[1]]

    used = {token: {"id": token, "ids": [tokens.index(token)], "tokens": [token]} for token in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("AB"),
        "special_tokens": used,
    }


def _texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    values = metadata.get(_KEY + name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise MalformedBytes(f"the GGUF file has no list of texts {name!r}", field=_KEY + name)
    return values


def _unsupported(name: str, got: object) -> UnsupportedModel:
    return UnsupportedModel(
        f"{_KEY}{name} is {got!r:.80}, which this program cannot split text like",
        hint="use the safetensors folder of the model, which holds its tokenizer.json",
        field=_KEY + name,
        got=repr(got)[:80],
    )
