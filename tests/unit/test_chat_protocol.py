"""The chat-completions protocol: what is read, what is refused by name, and texts that end an answer."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference
from cyberkv.runtime.serving.book import MOST_DIALOGUES, Book, Place
from cyberkv.runtime.serving.protocol import parse_chat
from cyberkv.runtime.serving.stops import StopWatch

HELLO = {"role": "user", "content": "Hello"}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HELLO], **changes}


def test_what_a_client_sends_by_default_is_read() -> None:
    asked = parse_chat(body(stream=True, stream_options={"include_usage": True}, user="someone", n=1, top_p=1))
    assert (asked.stream, asked.include_usage, asked.temperature, asked.max_tokens) == (True, True, 0.0, None)


def test_the_newer_name_of_a_limit_wins() -> None:
    assert parse_chat(body(max_tokens=5, max_completion_tokens=7)).max_tokens == 7


def test_parts_of_text_are_joined_and_the_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    asked = parse_chat(
        body(messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
    )
    assert asked.messages == ({"role": "system", "content": "Be brief."}, HELLO)


REFUSED: dict[str, tuple[object, str | None]] = {
    "not an object": ([], None),
    "no model": ({"messages": [HELLO]}, "model"),
    "a model that is a number": (body(model=1), "model"),
    "no messages": ({"model": "m"}, "messages"),
    "an empty list": (body(messages=[]), "messages"),
    "a message that is text": (body(messages=["Hello"]), "messages[0]"),
    "an unknown role": (body(messages=[{"role": "tool", "content": "x"}]), "messages[0].role"),
    "no content": (body(messages=[{"role": "user"}]), "messages[0].content"),
    "an image": (
        body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        "messages[0].content",
    ),
    "half a surrogate pair": (body(messages=[{"role": "user", "content": "\ud800"}]), "messages[0].content"),
    "a call of a tool": (
        body(messages=[{"role": "assistant", "content": "", "tool_calls": [{}]}]),
        "messages[0].tool_calls",
    ),
    "tools": (body(tools=[{"type": "function"}]), "tools"),
    "two answers": (body(n=2), "n"),
    "top_p": (body(top_p=0.5), "top_p"),
    "a penalty": (body(frequency_penalty=1), "frequency_penalty"),
    "probabilities": (body(logprobs=True), "logprobs"),
    "JSON as the form": (body(response_format={"type": "json_object"}), "response_format"),
    "a temperature below nothing": (body(temperature=-1), "temperature"),
    "a temperature that is no number": (body(temperature=float("nan")), "temperature"),
    "a temperature that is true": (body(temperature=True), "temperature"),
    "a negative limit": (body(max_tokens=-1), "max_tokens"),
    "a limit that is a text": (body(max_tokens="8"), "max_tokens"),
    "five stops": (body(stop=list("abcde")), "stop"),
    "an empty stop": (body(stop=""), "stop"),
    "a stream that is a text": (body(stream="yes"), "stream"),
    "options that are a list": (body(stream_options=[]), "stream_options"),
    "two messages for a conversation": (body(conversation="c", messages=[HELLO, HELLO]), "messages"),
    "an answer for a conversation": (
        body(conversation="c", messages=[{"role": "assistant", "content": "x"}]),
        "messages",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_by_name(case: str) -> None:
    asked, param = REFUSED[case]
    with pytest.raises(BadReference) as caught:
        parse_chat(asked)
    assert caught.value.data["param"] == param


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    for asked in (value, body(messages=value), body(messages=[value]), body(stop=value), body(stream_options=value)):
        with suppress(BadReference):
            parse_chat(asked)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.integers(1, 3))
def test_a_stop_text_is_found_however_the_text_is_cut(text: str, stops: list[str], step: int) -> None:
    watch, given_out = StopWatch(stops), ""
    for at in range(0, len(text), step):
        given_out += watch.feed(text[at : at + step])
    given_out += watch.finish()
    # The oracle reads prefixes as they arrive: the first piece after which a stop stands in the text decides.
    seen = [text[: at + step] for at in range(0, len(text), step)]
    first = next((part for part in seen if any(stop in part for stop in stops)), None)
    expected = text if first is None else first[: min(first.find(stop) for stop in stops if stop in first)]
    assert given_out == expected
    assert watch.found == (first is not None)


def test_a_dialogue_is_known_by_all_of_its_messages() -> None:
    book, place = Book(), Place("greeting", Cid.of(b"", "raw", "blake3"))
    book.remember([HELLO], "Hi.", place)
    answer, more = {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More"}
    assert book.place_of([HELLO, answer, more]) == place
    assert book.place_of([HELLO, {**answer, "content": "Hi"}, more]) is None
    assert book.place_of([{**HELLO, "content": "HelloH"}, {**answer, "content": "i."}, more]) is None


def test_dialogues_are_forgotten_oldest_first() -> None:
    book, root = Book(), Cid.of(b"", "raw", "blake3")
    for i in range(MOST_DIALOGUES + 1):
        book.remember([{"role": "user", "content": str(i)}], "x", Place(str(i), root))
    answer = {"role": "assistant", "content": "x"}
    assert book.place_of([{"role": "user", "content": "0"}, answer]) is None
    assert book.place_of([{"role": "user", "content": "1"}, answer]) == Place("1", root)
