"""Secrets that no output repeats, files that are not what they seem, and words that would steer a terminal."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from cyberkv.cli.commands import COMMANDS
from cyberkv.cli.failure import report
from cyberkv.cli.identities import FILE_VARIABLE, MAX_SECRET_BYTES
from cyberkv.cli.main import cli
from cyberkv.cybergraph.access import ContentKey, Identity, ShareLink
from cyberkv.cybergraph.cid import Cid
from tests.cli.conftest import Command, Result, weaken_passphrases

ROOT = Cid.of(b"root", "dag-cbor", "sha2-256")
LINK = str(ShareLink.make(ROOT, ContentKey(bytes(range(100, 132))), bytes(range(32))))
SECRET = LINK.split("#v1.")[1]
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def leaks(result: Result, secret: str) -> list[str]:
    """Pieces of a secret that an output repeats."""
    shown = result.stdout + result.stderr
    return [piece for at in range(len(secret) - 7) if (piece := secret[at : at + 8]) in shown]


def leaves_of(group: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command with its subcommands, as words."""
    if isinstance(group, click.Group):
        ctx = click.Context(group)
        return [
            line
            for name in group.list_commands(ctx)
            for command in [group.get_command(ctx, name)]
            if command is not None
            for line in leaves_of(command, (*words, name))
        ]
    return [words]


LINES = [line for name in COMMANDS for line in leaves_of(cli.get_command(click.Context(cli), name) or cli, (name,))]
OTHERS = {"serve", "bench", "demo", "run", "find", "why"}
"""Commands that go on for long, and those whose argument is a text that they are to show."""


@pytest.mark.parametrize("line", [line for line in LINES if line[0] not in OTHERS], ids=" ".join)
def test_no_command_repeats_the_secret_of_a_link_it_cannot_use(story: Command, line: tuple[str, ...]) -> None:
    """Whatever goes wrong: told as text, as JSON, with tracebacks."""
    for link in (LINK, LINK.replace("cyberkv://", "https://example.invalid/ipfs/"), f"story{LINK[-70:]}"):
        for options in (("-v", "-v"), ("--json",)):
            result = story(*options, *line, link, ok=False)
            assert result.exit_code, line
            assert not leaks(result, SECRET), (line, link)


@pytest.mark.parametrize("options", [
    ("fetch", "story", "--from", LINK), ("fetch", LINK, "--from", LINK), ("fetch", LINK, LINK), (LINK,),
    ("run", "hello", "--from", LINK), ("publish", "story", "--to", LINK), ("publish", LINK, "--public", "--yes"),
    ("grant", "add", "story", LINK), ("grant", "revoke", "story", LINK), ("key", "show", LINK), ("fetch", LINK),
    ("fetch", LINK, "--from", "kubo:http://127.0.0.1:1"), ("verify", LINK, "--all"),
    ("fetch", LINK, "--from", "http://127.0.0.1:1"), ("fetch", "-", "--from", "http://127.0.0.1:1"),
])  # fmt: skip
def test_no_option_repeats_it_either(story: Command, options: tuple[str, ...]) -> None:
    for flags in (("-v", "-v"), ("--json",)):
        result = story(*flags, *options, ok=False, stdin=f"{LINK}\n")
        assert result.exit_code, options
        assert not leaks(result, SECRET), options


def test_a_traceback_does_not_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, as_json in ((2, False), (2, True)):
        report(RuntimeError(f"no way to {LINK}, to '{LINK}'"), as_json=as_json, verbose=verbose, color=False)
    out, err = capsys.readouterr()
    assert "RuntimeError" in out
    assert "Traceback" not in out
    assert not leaks(Result(1, out, err), SECRET)
    report(RuntimeError("cyberkv://CID#v1.…, #v1 and file#v1.txt"), as_json=False, verbose=0, color=False)
    assert "cyberkv://CID#v1.…, #v1 and file#v1.txt" in capsys.readouterr().err  # control: only secrets are cut


def test_a_secret_key_named_by_mistake_is_not_repeated(story: Command, tmp_path: Path) -> None:
    seed = b"seed-that-would-be-shown-as-text"
    from cyberkv.cybergraph.access.keyfile import key_bytes

    path = tmp_path / "me.key"
    path.write_bytes(key_bytes(Identity(seed), None))
    for words in (("publish", "story", "--to", path), ("grant", "add", "story", path)):
        assert not leaks(story("-v", "-v", *words, ok=False), seed.decode())
    result = story("-v", "-v", "publish", "story", "--to", path, ok=False)
    assert result.exit_code == 2
    assert "no public key in the file" in result.stderr
    path.write_bytes(path.read_bytes().replace(b"\x58\x20" + seed, b"\x58\x1f" + seed[:-1]))
    result = story("-v", "-v", "key", "import", path, ok=False)
    assert result.exit_code == 6
    assert not leaks(result, seed.decode())


WORDS = "correct horse battery staple"


def big(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def pipe(path: Path) -> None:
    os.mkfifo(path)


FILES: dict[str, tuple[Callable[[Path], object], int]] = {
    "a gibibyte": (big, 6), "a pipe that nobody writes to": (pipe, 6), "a folder": (Path.mkdir, 3),
    "nothing": (lambda path: None, 3), "no bytes": (lambda path: path.write_bytes(b""), 6),
    "an empty line": (lambda path: path.write_text(f"\n{WORDS}\n"), 6),
    "other bytes": (lambda path: path.write_bytes(WORDS.encode() + b"\xff\xfe\n"), 6),
    "a line too long": (lambda path: path.write_text(WORDS + "x" * MAX_SECRET_BYTES), 6),
    "zeros without end": (lambda path: path.symlink_to("/dev/zero"), 6),
    "other words": (lambda path: path.write_text("wrong\n"), 6),
    "the words in another case": (lambda path: path.write_text(WORDS.upper()), 6),
}  # fmt: skip


@pytest.fixture(scope="session")
def locked_home(first_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose one key is under a passphrase."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "words").write_text(f"{WORDS}\r\nmore lines\n")
    with pytest.MonkeyPatch.context() as patch:
        weaken_passphrases(patch)  # it is made before what every test has patched
        patch.setenv(FILE_VARIABLE, str(folder / "words"))
        Command(folder / "home").json("key", "new", "--passphrase")
    return folder / "home"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_no_passphrase(
    locked_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command, path = Command(locked_home), tmp_path / "words"
    make, exit_code = FILES[name]
    make(path)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    for words in (("key", "show"), ("key", "export", "me", tmp_path / "out")):
        result = command("-v", "-v", *words, ok=False)
        assert result.exit_code == exit_code, result
        assert "Traceback" not in result.stderr
        assert not leaks(result, WORDS)
    assert not (tmp_path / "out").exists()


def test_control_the_passphrase_from_a_file_and_from_a_pipe(
    locked_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line of it, whichever way lines end there; a pipe is what `<(…)` of a shell makes."""
    path = tmp_path / "words"
    for content in (WORDS, f"{WORDS}\n", f"{WORDS}\r\n", f"{WORDS}\nmore\n"):
        path.write_text(content)
        monkeypatch.setenv(FILE_VARIABLE, str(path))
        shown = Command(locked_home)("-v", "-v", "key", "show")
        assert not leaks(shown, WORDS)
    reading, writing = os.pipe()
    os.write(writing, f"{WORDS}\n".encode())
    monkeypatch.setenv(FILE_VARIABLE, f"/dev/fd/{reading}")
    assert Command(locked_home)("key", "show").stdout == shown.stdout
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("name", ["a gibibyte", "a pipe that nobody writes to", "a folder", "nothing", "no bytes",
                                  "zeros without end", "other bytes"])  # fmt: skip
def test_a_file_that_holds_no_key(cyberkv: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    FILES[name][0](path)
    for words in (("key", "import", path, "--name", "new"), ("publish", "story", "--to", path)):
        result = cyberkv("-v", "-v", *words, ok=False)
        assert result.exit_code in (2, 3, 6), result
        assert "Traceback" not in result.stderr
    assert not (cyberkv.home / "keys").exists()


STEERING = "\x1b[31mred\x07\x9b2J\u202egnp\x1b]0;title\x07"


def test_labels_and_names_do_not_steer_the_terminal(story: Command, tmp_path: Path) -> None:
    key = Command(tmp_path / "reader").json("key", "new")["public"]
    story("publish", "story", "--link")
    for words in (
        ("grant", "add", "story", key, "--label", STEERING), ("grant", "list"), ("grant", "list", "story"),
        ("grant", "revoke", "story", STEERING + "x"), ("publish", "story", "--to", STEERING), ("key", "show", STEERING),
        ("key", "new", f"../{STEERING}"), ("fetch", STEERING), ("publish", "story", "--to", "readers"),
    ):  # fmt: skip
        result = story("-v", "-v", *words, ok=False)
        assert not UNSAFE.search(result.stdout + result.stderr), words
        assert "Traceback" not in result.stderr
    assert story.json("grant", "list", "story")["grants"][0]["readers"][0]["label"] == STEERING


def test_a_label_too_long_is_a_mistake_of_the_command_line(story: Command, tmp_path: Path) -> None:
    key = Command(tmp_path / "reader").json("key", "new")["public"]
    story("publish", "story", "--link")
    before = story.json("grant", "list", "story")
    assert story.error(2, "grant", "add", "story", key, "--label", "x" * 129)["kind"] == "bad-reference"
    assert story.json("grant", "list", "story") == before


@pytest.mark.parametrize("title", ["../../x", "/etc/passwd", "a\0b", STEERING, "..", "~root", "-rf", "con:"])
def test_a_sealed_title_names_no_path(cyberkv: Command, elsewhere: Command, tmp_path: Path, title: str) -> None:
    """Whoever publishes chooses the title; here it becomes a harmless name, and nothing is written beside the home."""
    from dataclasses import replace

    from cyberkv.cybergraph.chain import load_root
    from cyberkv.cybergraph.index import Index
    from cyberkv.cybergraph.store import DiskStore

    cyberkv("prefill", "-", "--name", "talk", stdin="Nothing to see here, but the title.")
    with DiskStore(cyberkv.home / "store") as store, Index(cyberkv.home / "index") as index:
        root = replace(load_root(store, index.head("talk").root), title=title)
        index.set_head("renamed", store.put_node(root), "2026-01-01T00:00:00Z")
    link = cyberkv.json("publish", "renamed", "--link", "--car", tmp_path / "it.car")["link"]
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(elsewhere.home)}
    result = elsewhere("-v", "-v", "fetch", link, "--from", tmp_path / "it.car")
    assert not UNSAFE.search(result.stdout + result.stderr)
    [name] = [each["name"] for each in elsewhere.json("list")["conversations"]]
    assert not re.search(r"[/\0-\x20]|^-", name)
    shown = elsewhere("show", name).stdout + elsewhere("list").stdout + elsewhere("log", name).stdout
    assert not UNSAFE.search(shown)
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(elsewhere.home)} == before
