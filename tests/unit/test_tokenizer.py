"""Text, tokens and chat templates."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from cyberkv.cybergraph.errors import Corrupt, LimitExceeded, Refused, UnsupportedModel
from cyberkv.runtime.models.template import MAX_RENDERED_BYTES, ChatTemplate
from cyberkv.runtime.models.tokenizer import TextCodec
from tests.numerics.tiny import write_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }}"
    "{{ eos_token }}{% endif %}{% endfor %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def byte_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder = tmp_path_factory.mktemp("bytes")
    write_tokenizer(folder)
    return load(folder)


@pytest.fixture(scope="module")
def piece_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """Give a tokenizer of the SentencePiece kind: a space before words, bytes for what it does not know."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{at:02X}>": 3 + at for at in range(256)}}
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he")]
    for piece in ["\u2581", "t", "h", "e", "a", "é", *("".join(merge) for merge in merges)]:
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    folder = tmp_path_factory.mktemp("pieces")
    tokenizer.save(str(folder / "tokenizer.json"))
    return load(folder)


def load(folder: Path) -> TextCodec:
    codec = TextCodec.load(folder)
    assert codec is not None
    return codec


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@given(st.text())
def test_bytes_round_trip(byte_codec: TextCodec, text: str) -> None:
    assert byte_codec.decode(byte_codec.encode(text)) == text


@given(st.text())
def test_pieces_round_trip(piece_codec: TextCodec, text: str) -> None:
    if "\u2581" not in text:
        assert piece_codec.decode(piece_codec.encode(text)) == text


@given(st.text(alphabet=st.sampled_from("the a é世🎉\n"), max_size=30), st.booleans())
def test_streamed_text_is_the_text_and_never_half_a_character(
    byte_codec: TextCodec, piece_codec: TextCodec, text: str, pieces: bool
) -> None:
    codec = piece_codec if pieces else byte_codec
    tokens = codec.encode(text)
    stream = codec.stream()
    parts = [stream.feed(token) for token in tokens]
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts) + stream.finish() == codec.decode(tokens, special=False)


@given(st.lists(st.integers(0, 271)))
def test_streamed_junk_is_the_decoded_junk(byte_codec: TextCodec, tokens: list[int]) -> None:
    stream = byte_codec.stream()
    streamed = "".join(stream.feed(token) for token in tokens) + stream.finish()
    assert streamed == byte_codec.decode(tokens, special=False)


def test_streamed_text_arrives_as_soon_as_it_is_certain(byte_codec: TextCodec) -> None:
    stream = byte_codec.stream()
    assert [stream.feed(token) for token in byte_codec.encode("aé!")] == ["a", "", "é", "!"]
    half = byte_codec.encode("é")[:1]
    assert (stream.feed(half[0]), stream.finish(), stream.finish()) == ("", "\ufffd", "")


def test_special_tokens_are_shown_or_left_out(byte_codec: TextCodec) -> None:
    tokens = byte_codec.encode("a<|end|>b")
    assert len(tokens) == 3
    assert byte_codec.decode(tokens) == "a<|end|>b"
    assert byte_codec.decode(tokens, special=False) == "ab"
    stream = byte_codec.stream(special=True)
    assert "".join(map(stream.feed, tokens)) == "a<|end|>b"


def test_a_folder_without_tokenizer_has_no_text(tmp_path: Path) -> None:
    assert TextCodec.load(tmp_path) is None


def test_digest_is_of_the_content_and_not_of_its_spelling(folder: Path, tmp_path: Path) -> None:
    path = folder / "tokenizer.json"
    digest, original = load(folder).digest, path.read_text()
    content = json.loads(original)
    path.write_text(json.dumps(dict(reversed(content.items())), indent=7, ensure_ascii=True))
    assert load(folder).digest == digest
    edit(path, lambda content: content["added_tokens"].pop())
    assert load(folder).digest != digest


def test_truncation_and_padding_of_a_training_run_are_undone(folder: Path) -> None:
    path, digest = folder / "tokenizer.json", load(folder).digest
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    assert len(Tokenizer.from_file(str(path)).encode("abcd").ids) == 9
    assert len(load(folder).encode("abcd")) == 4
    assert load(folder).digest == digest


def test_end_tokens_come_from_every_file_that_names_them(folder: Path) -> None:
    assert load(folder).eos_ids == {257}
    (folder / "config.json").write_text('{"eos_token_id": 258}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 259]}')
    assert load(folder).eos_ids == {257, 258, 259}
    (folder / "config.json").write_text('{"eos_token_id": null}')
    (folder / "generation_config.json").write_text('{"eos_token_id": "257"}')
    assert load(folder).eos_ids == {257}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 1}', '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_damaged_tokenizers_are_typed_errors(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(Corrupt):
        TextCodec.load(folder)


def test_a_template_file_goes_before_the_one_in_the_settings(folder: Path) -> None:
    first = load(folder)
    assert first.render(HELLO) == "<|user|>Hello<|end|><|assistant|>"
    assert first.render(HELLO, generate=False) == "<|user|>Hello<|end|>"
    (folder / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    second = load(folder)
    assert second.render(HELLO) == "file Hello"
    assert first.template_digest != second.template_digest
    assert first.digest == second.digest


def test_named_templates_and_tokens_as_maps(folder: Path) -> None:
    templates = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ bos_token }} yes"},
    ]
    settings = {"bos_token": {"content": "<|start|>"}, "chat_template": templates}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load(folder).render(HELLO) == "<|start|> yes"


def test_without_a_template_text_is_plain(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    codec = load(folder)
    assert codec.template_digest == "none"
    assert codec.render([*HELLO, {"role": "assistant", "content": "Hi"}]) == "Hello\n\nHi"
    assert codec.continue_turn("More") == "\n\nMore"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n"),
        (INST, "<|end|>[INST] More [/INST]"),
        ("{% for m in messages %}{{ m.content }}|{% endfor %}", "|More|"),
    ],
)
def test_next_turn_is_what_the_whole_history_would_have(folder: Path, template: str, expected: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    codec = load(folder)
    assert codec.continue_turn("More") == expected
    history = [*HELLO, {"role": "assistant", "content": "Hi"}]
    whole = codec.render([*history, {"role": "user", "content": "More"}])
    assert whole == codec.render(HELLO) + (" " if template is INST else "") + "Hi" + expected


@pytest.mark.parametrize(
    "template",
    ["{{ messages[-1].content }}", "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages }}"],
)
def test_templates_that_rewrite_earlier_answers_cannot_go_on(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UnsupportedModel, match="rewrites earlier answers"):
        load(folder).continue_turn("More")


def test_what_templates_in_the_field_use() -> None:
    source = """
{%- set ns = namespace(found=false) %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {%- set ns.found = true %}
    {%- generation %}{{ m.content | tojson }}{% endgeneration %}
{%- endfor %}
{%- if tools is not none or strftime_now is defined %}wrong{% endif %}
{{- ns.found }}{{ '<>' | tojson }}"""
    assert ChatTemplate(source, {}).render(HELLO, generate=True) == '"Hello"True"<>"'


def test_a_template_says_what_it_objects_to() -> None:
    template = ChatTemplate(INST, {"bos_token": "", "eos_token": ""})
    with pytest.raises(Refused, match="roles must alternate") as caught:
        template.render([*HELLO, *HELLO], generate=True)
    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ strftime_now('%Y') }}",
        "{{ messages[7].content }}",
        "{{ 1 // 0 }}",
        "{{ 'a' + 1 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '\\ud800' }}",
    ],
)
def test_hostile_and_broken_templates_are_refused(source: str) -> None:
    with pytest.raises(Refused):
        ChatTemplate(source, {}).render(HELLO, generate=True)


def test_endless_output_is_cut() -> None:
    source = "{% for i in range(90000) %}{{ 'x' * 100000 }}{% endfor %}"
    with pytest.raises(LimitExceeded):
        ChatTemplate(source, {}).render(HELLO, generate=True)
    with pytest.raises(LimitExceeded):
        ChatTemplate("x" * (1 << 20) + "x", {})


@pytest.mark.parametrize("source", ["{% for %}", "{{ ", "{% include 'x' %}{% endif %}", "(" * 5 + "{{ " + "(" * 9000])
def test_templates_that_do_not_compile_are_typed_errors(source: str) -> None:
    with pytest.raises(Corrupt):
        ChatTemplate(source, {}).check()
    with pytest.raises(Corrupt):
        ChatTemplate(source, {}).render(HELLO, generate=True)


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{% set x = messages | length + 9 %}{{ x ** (x ** x) }}",
    "folded while compiling": "{{ 7 ** (7 ** 11) }}",
    "doubling": "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "filters": "{{ 'x' | center(10 ** 11) }}",
    "wide": "{% set x = '😀' * 1000 %}{% for i in range(60000) %}{{ x }}{% endfor %}",
    "bytes": "{{ '😀' * (2 ** 21 + 1) }}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_never_ends_or_fills_memory_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr("cyberkv.runtime.models.template.MAX_CPU_S", 1)
        with pytest.raises(LimitExceeded) as caught:
            ChatTemplate(source, {}).render(HELLO, generate=True)
    assert caught.value.hint


def test_control_a_text_as_long_as_the_bound_is_none_too_long() -> None:
    # JSON makes the first longer still; the second is a long honest conversation.
    assert ChatTemplate("{{ '\\x00' * 2 ** 23 }}", {}).render(HELLO, generate=True) == "\0" * MAX_RENDERED_BYTES
    assert "Hello" in ChatTemplate(CHATML, {}).render(HELLO * 2000, generate=True)


def test_what_a_template_objects_to_is_cut_short() -> None:
    with pytest.raises(Refused) as caught:
        ChatTemplate("{{ raise_exception('no ' * 10 ** 7) }}", {}).render(HELLO, generate=True)
    assert 1000 < len(str(caught.value)) < 2000


def test_a_template_runs_no_file_of_the_folder_it_is_used_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert ChatTemplate("{{ messages[0].content }}", {}).render(HELLO, generate=False) == "Hello"


SETTINGS = {
    "bos_token": {"bos_token": "\ud800"},
    "eos_token": {"eos_token": {"content": "\udfff"}},
    "chat_template": {"chat_template": "a \ud800"},
}


@pytest.mark.parametrize("field", SETTINGS)
def test_half_a_surrogate_pair_in_the_settings_is_named(folder: Path, field: str) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[field]))
    with pytest.raises(Corrupt, match="not Unicode") as caught:
        TextCodec.load(folder)
    assert caught.value.data["field"] == field


@pytest.mark.parametrize("odd", [{"a": 1}, [[1], {"b": 2}, None], "2", 2.5, True, None])
def test_end_tokens_of_odd_types_are_no_end_tokens(folder: Path, odd: object) -> None:
    known = load(folder).eos_ids
    (folder / "config.json").write_text(json.dumps({"eos_token_id": odd}))
    assert load(folder).eos_ids == known
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [odd, 7]}))
    assert load(folder).eos_ids == {*known, 7}


def test_odd_entries_in_a_list_of_templates_are_passed_over(folder: Path) -> None:
    templates = [7, {"name": ["default"], "template": "no"}, {"name": "default", "template": "yes"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert load(folder).render(HELLO) == "yes"


def test_a_template_file_that_is_not_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(Corrupt, match="UTF-8"):
        TextCodec.load(folder)
    shutil.rmtree(folder)
