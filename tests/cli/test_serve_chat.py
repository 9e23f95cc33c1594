"""`serve --chat` as a process, asked by the `openai` package as by any client of the protocol."""

import http.client
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Command
from tests.cli.test_serve import start

if TYPE_CHECKING:
    from openai import OpenAI

SYSTEM = {"role": "system", "content": "You keep a lighthouse and count the ships that pass it by day and by night."}
ASK = {"role": "user", "content": "How many ships?"}


@contextmanager
def chat_server(home: Path, *options: object, module: str = "cyberkv.cli") -> Iterator[str]:
    process = start(home, "serve", "--chat", "--listen", "127.0.0.1:0", *options, module=module)
    try:
        line = process.stdout.readline()
        assert line, process.communicate()
        yield json.loads(line)["chat"]
    finally:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        assert process.returncode == 130, stderr
        assert "Traceback" not in stderr


def client(url: str, key: str = "unused") -> "OpenAI":
    from openai import OpenAI  # takes a second, which other test processes have no need of

    return OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, first_home: Path) -> Path:
    import shutil

    return shutil.copytree(first_home, tmp_path_factory.mktemp("chat") / "home")


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    with chat_server(home, module="tests.once") as url:
        yield url


def ask(url: str, *messages: dict[str, str], **more: Any) -> Any:
    with client(url) as asking:
        answer = asking.chat.completions.create(model="tiny", messages=messages, max_tokens=8, **more)  # type: ignore[call-overload]
        return list(answer) if "stream" in more else answer


def test_a_turn_is_answered_and_recorded(url: str, home: Path) -> None:
    with client(url) as asking:
        raw = asking.chat.completions.with_raw_response.create(model="tiny", messages=[SYSTEM, ASK], max_tokens=8)  # type: ignore[call-overload]
        answer = raw.parse()
    root, name = raw.headers["CyberKV-Root"], raw.headers["CyberKV-Conversation"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    recorded = Command(home).json("show", name)
    assert recorded["cid"] == root
    assert recorded["node"]["length"] == answer.usage.total_tokens
    assert name == "how-many-ships"


def test_the_answer_is_that_of_run(url: str, home: Path, cyberkv: Command) -> None:
    answer = ask(url, SYSTEM, ASK)
    same = cyberkv.json("run", ASK["content"], "--system", SYSTEM["content"], "--max-tokens", 8)
    assert answer.choices[0].message.content == same["text"]
    assert ask(url, SYSTEM, {**ASK, "content": "Why?"}).choices[0].message.content != same["text"]


def test_a_repeated_beginning_is_not_computed_again(url: str) -> None:
    first = ask(url, SYSTEM, {"role": "user", "content": "Tell me of the fog."})
    again = ask(url, SYSTEM, {"role": "user", "content": "Tell me of the bay."})
    control = ask(url, {"role": "system", "content": "Another keeper."}, {"role": "user", "content": "Tell me."})
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert again.usage.prompt_tokens - 32 < cached < again.usage.prompt_tokens
    assert control.usage.prompt_tokens_details.cached_tokens == 0
    assert first.usage.completion_tokens == 8


def test_a_dialogue_goes_on_under_its_name(url: str, home: Path) -> None:
    asked = {"role": "user", "content": "Who keeps the light?"}
    first = ask(url, asked)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    second = ask(url, asked, said, {"role": "user", "content": "And who trims the wick?"})
    name = first.model_extra["cyberkv"]["conversation"]
    assert second.model_extra["cyberkv"]["conversation"] == name
    roots = [root["root"] for root in Command(home).json("log", name)["roots"]]
    assert roots == [turn.model_extra["cyberkv"]["root"] for turn in (first, second)]


def test_a_name_of_any_letters_fits_into_a_header(url: str, home: Path) -> None:
    with client(url) as asking:
        raw = asking.chat.completions.with_raw_response.create(
            model="tiny", messages=[{"role": "user", "content": "Сколько кораблей?\r\nX-Other: 1"}], max_tokens=4
        )
    name = unquote(raw.headers["CyberKV-Conversation"])
    assert name == raw.parse().model_extra["cyberkv"]["conversation"] == "сколько-кораблей-x-other-1"
    assert "X-Other" not in raw.headers
    assert Command(home).json("show", name)["cid"] == raw.headers["CyberKV-Root"]


def together(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def test_dialogues_that_begin_alike_do_not_become_one(url: str, home: Path) -> None:
    def dialogue(who: str) -> list[str]:
        messages, roots = [{"role": "user", "content": "Good evening."}], []
        for turn in range(3):
            answer = ask(url, *messages)
            roots.append(answer.model_extra["cyberkv"]["root"])
            said = {"role": "assistant", "content": answer.choices[0].message.content}
            messages += [said, {"role": "user", "content": f"{who}, {turn}"}]
        return roots[1:]  # the first turns are the same, whoever's they are

    dialogues = together(*(partial(dialogue, who) for who in "ABC"))
    for name in [each["name"] for each in Command(home).json("list")["conversations"]]:
        log = {root["root"] for root in Command(home).json("log", name)["roots"]}
        assert sum(bool(log & set(roots)) for roots in dialogues) <= 1
    assert len({root for roots in dialogues for root in roots}) == 6


def test_what_went_on_meanwhile_keeps_its_name(url: str, home: Path) -> None:
    first = ask(url, {"role": "user", "content": "Three ways from here."}).model_extra["cyberkv"]

    def go_on(way: str) -> Any:
        turn = ask(url, {"role": "user", "content": way}, extra_body={"conversation": first["conversation"]})
        return turn.model_extra["cyberkv"]

    turns = together(*(partial(go_on, way) for way in ("North", "East", "South")))
    log = [root["root"] for root in Command(home).json("log", first["conversation"])["roots"]]
    # Whoever began before another had ended is a fork, and no name stands for both.
    stayed = {each["root"] for each in turns if each["conversation"] == first["conversation"]}
    assert {*log} == {first["root"], *stayed}
    assert len(log) - 1 + len({each["conversation"] for each in turns} - {first["conversation"]}) == 3
    for each in turns:
        node = Command(home).json("show", each["root"])["node"]
        assert each["conversation"] == first["conversation"] or node["parent"] == first["root"]


def test_a_recorded_conversation_is_gone_on_with(url: str, home: Path) -> None:
    import openai

    first = ask(url, {"role": "user", "content": "Begin."})
    root, name = first.model_extra["cyberkv"]["root"], first.model_extra["cyberkv"]["conversation"]
    second = ask(url, {"role": "user", "content": "Go on."}, extra_body={"conversation": root})
    assert second.model_extra["cyberkv"]["conversation"] == name
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens
    with pytest.raises(openai.NotFoundError):
        ask(url, {"role": "user", "content": "Go on."}, extra_body={"conversation": "nobody"})


def test_a_stream_is_the_same_answer_in_pieces(url: str, home: Path) -> None:
    whole = ask(url, SYSTEM, ASK)
    pieces = ask(url, SYSTEM, ASK, stream=True, stream_options={"include_usage": True})
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage.total_tokens == whole.usage.total_tokens
    ended = next(piece for piece in pieces if piece.choices and piece.choices[0].finish_reason)
    assert ended.choices[0].finish_reason == "length"
    assert Command(home).json("show", ended.model_extra["cyberkv"]["root"])["node"]["type"] == "cyberkv/conversation"


def test_a_stop_text_ends_the_answer(url: str) -> None:
    whole = ask(url, SYSTEM, ASK).choices[0].message.content
    stop = whole[2:4]
    stopped = ask(url, SYSTEM, ASK, stop=[stop])
    assert stopped.choices[0].message.content == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_many_at_once_get_what_each_gets_alone(url: str) -> None:
    def answer(i: int) -> str:
        text: str = ask(url, SYSTEM, {"role": "user", "content": f"Ship {i}?"}).choices[0].message.content
        return text

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(answer, range(6)))
    assert together == [answer(i) for i in range(6)]
    assert len(set(together)) > 1


def test_models_are_listed(url: str) -> None:
    with client(url) as asking:
        assert [model.id for model in asking.models.list()] == ["tiny"]
        assert asking.models.retrieve("tiny").id == "tiny"


def test_errors_are_those_of_the_protocol(url: str) -> None:
    import openai

    with client(url) as asking, pytest.raises(openai.NotFoundError, match="not served here"):
        asking.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="tools is not supported") as caught:
        ask(url, ASK, tools=[{"type": "function", "function": {"name": "f"}}])
    assert caught.value.param == "tools"
    with pytest.raises(openai.BadRequestError, match="positions"):
        ask(url, {"role": "user", "content": "x" * 5000})
    with client(url) as asking, pytest.raises(openai.NotFoundError):
        asking.embeddings.create(model="tiny", input="x")


def post(url: str, headers: dict[str, str], body: bytes = b'{"model":"tiny","messages":[]}') -> tuple[int, Any]:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("POST", f"/{path}/chat/completions", body, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Host": "rebound.example"}, 403),
        ({"X-Forwarded-For": "192.0.2.7"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_only_programs_of_this_machine_are_answered(url: str, headers: dict[str, str], status: int) -> None:
    assert post(url, headers)[0] == status


def test_a_body_that_is_no_json_or_too_long_is_refused(url: str) -> None:
    assert post(url, {}, b"{")[0] == 400
    assert post(url, {}, b"[" * 100_000)[0] == 400
    assert post(url, {}, b" " * (9 << 20))[0] == 413


def test_with_a_key_whoever_shows_it_is_answered_and_host_memory_is_counted(
    url: str, tmp_path: Path, cyberkv: Command
) -> None:
    import openai

    ask(url, ASK)
    assert "cyberkv_tier_l2_hits " in (off := metrics(url))
    assert "cyberkv_host_used_bytes 0.0" in off
    assert "prefetch" not in off  # the control: without the option nothing is brought ahead
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123\n")
    assert cyberkv.error(5, "serve", "--chat", "--chat-key", key)["hint"].startswith("chmod 600")
    key.chmod(0o600)
    with chat_server(cyberkv.home, "--chat-key", key, "--host-memory", "64MiB") as other:
        with client(other, "wrong") as asking, pytest.raises(openai.AuthenticationError):
            asking.models.list()
        with client(other, "0123456789abcdef0123") as asking:
            assert asking.models.list().data[0].id == "tiny"
            asking.chat.completions.create(model="tiny", messages=[ASK], max_tokens=8)  # type: ignore[list-item]
        assert post(other, {"Origin": "https://x.example", "Authorization": "Bearer 0123456789abcdef0123"})[0] == 400
        names = {line.split()[0] for line in metrics(other).splitlines() if not line.startswith("#")}
        assert {f"cyberkv_{word}_bytes" for word in ("prefetched", "prefetch_used", "prefetch_wasted")} <= names


@pytest.mark.parametrize(
    "content", [b"short", b"0123456789 abcdef", b"0123456789\nabcdef0123", b"\xff" * 20, b"a" * 5000]
)
def test_what_nobody_could_show_is_no_key(content: bytes, cyberkv: Command, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    key.chmod(0o600)
    assert "letters" in cyberkv.error(5, "serve", "--chat", "--chat-key", key)["message"]


def test_a_client_that_leaves_ends_its_turn(url: str) -> None:
    with client(url) as asking:
        stream = asking.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Leave"}], stream=True, max_tokens=1500
        )
        next(iter(stream))
        stream.close()
    assert ask(url, ASK).usage.completion_tokens == 8  # nobody waits for the one who left


def test_what_is_said_stays_private(url: str, home: Path) -> None:
    root = ask(url, SYSTEM, ASK).model_extra["cyberkv"]["root"]
    gateway = url.removesuffix("/v1").removeprefix("http://")
    connection = http.client.HTTPConnection(gateway, timeout=60)
    connection.request("GET", f"/ipfs/{root}?format=raw")
    assert connection.getresponse().status == 404
    connection.close()


def test_meanwhile_nothing_is_deleted_and_nothing_half_locked(url: str, home: Path) -> None:
    name = ask(url, {"role": "user", "content": "Keep this shut."}).model_extra["cyberkv"]["conversation"]
    command = Command(home)
    before, nodes = command.json("show", name)["cid"], command.json("stats")["nodes"]
    for line in (("gc",), ("lock", name, "--weak")):
        refused = command.error(5, *line)
        assert f"(cyberkv serve at {url.removesuffix('/v1')}) may be recording" in refused["message"]
        assert "nothing was changed; stop it, then run the same command again" in refused["hint"]
    assert (command.json("show", name)["cid"], command.json("stats")["nodes"]) == (before, nodes)
    assert command.json("key", "list")["keys"] == []


def metrics(url: str) -> str:
    with urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def test_options_that_belong_to_it(cyberkv: Command) -> None:
    cyberkv.error(2, "serve", "--host-memory", "1MiB")
    assert "KiB" in cyberkv.error(2, "serve", "--chat", "--host-memory", "lots")["message"]
    cyberkv.error(2, "serve", "--model", "tiny")
