"""Global options, errors and exit codes."""

import json
import os
import pty
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cyberkv.cli import failure
from cyberkv.cli.main import cli, hoist, main
from cyberkv.cybergraph import errors
from cyberkv.cybergraph.cid import Cid
from tests.cli.conftest import STORY, Command
from tests.unit.gguf_files import write_gguf

READING = [
    "list", "log x", "show x", "walk x", "diff a b", "find x", "stats", "fsck", "fsck --repair", "fork x --at 1",
    "index rebuild", "model list", "model show x", "model diff a b", "size x 1", "why x", "run x",
    "chat", "run x --from y", "prefill /nonexistent", "publish x", "publish x --public --dry-run",
    "fetch x", "verify x", "serve",
]  # fmt: skip


@pytest.mark.parametrize("line", READING)
def test_without_a_home_nothing_is_found_and_nothing_made(line: str, tmp_path: Path) -> None:
    error = Command(tmp_path / "none").error(3, *line.split())
    assert error["hint"]
    assert list(tmp_path.iterdir()) == []


def test_global_options_stand_anywhere(story: Command) -> None:
    before = story("--json", "list").json
    assert story("list", "--json").json == before
    assert before["conversations"][0]["name"] == "story"


def test_what_follows_two_dashes_is_no_option() -> None:
    assert hoist(["find", "--json", "--", "--json", "-v"]) == ["--json", "find", "--", "--json", "-v"]
    assert hoist(["find", "-x"]) == ["find", "-x"]
    assert hoist(["list", "--home"]) == ["--home", "list"]


def test_the_home_comes_from_the_environment_unless_it_is_given(
    story: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CYBERKV_HOME", str(story.home))
    result = CliRunner().invoke(cli, ["list", "--json"])
    assert [each["name"] for each in json.loads(result.stdout)["conversations"]] == ["story"]
    result = CliRunner().invoke(cli, ["list", "--json", "--home", str(tmp_path / "other")])
    assert result.exit_code == 3


def test_the_home_is_else_the_data_folder_of_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    result = CliRunner().invoke(cli, ["list", "--json"])
    assert json.loads(result.stdout)["error"]["home"] == str(tmp_path / "cyberkv")


def test_a_home_is_private(cyberkv: Command, tiny_folder: Path, tmp_path: Path) -> None:
    made, given = tmp_path / "made", tmp_path / "given"
    given.mkdir()
    given.chmod(0o755)
    gguf = write_gguf(tiny_folder, tmp_path / "converted.gguf", "llama")
    for home in (made, given):
        command = Command(home)
        command("model", "add", tiny_folder, "--name", "tiny")
        command("model", "add", gguf)
        command("prefill", "-", "--model", "tiny", "--name", "story", stdin=STORY)
        inside = list(home.rglob("*"))
        assert {"FORMAT", "data.mdb", "lock.mdb", "tiny.json", "model.safetensors"} <= {each.name for each in inside}
        assert {each for each in inside if each.stat().st_mode & 0o777 != (0o700 if each.is_dir() else 0o600)} == set()
    assert made.stat().st_mode & 0o777 == 0o700
    assert given.stat().st_mode & 0o777 == 0o755  # its owner's choice; what is in it is closed all the same


@pytest.mark.parametrize("off", ["--no-color", "NO_COLOR"])
def test_errors_are_red_only_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    def shown(*options: str) -> str:
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr("sys.stderr", terminal)
            with pytest.raises(SystemExit):
                cli.main(["--home", str(tmp_path / "none"), "list", *options])
            terminal.flush()
            text = os.read(ours, 4096).decode()
        os.close(ours)
        return text

    assert "\x1b[31merror: " in shown()
    if off.startswith("-"):
        plain = shown(off)
    else:
        monkeypatch.setenv(off, "1")
        plain = shown()
    assert "error: " in plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("below", ["", "x", "x/y", "long", "\udcff"])
@pytest.mark.parametrize("line", [["list"], ["doctor"], ["model", "add"], ["run", "Hi"]])
def test_a_home_that_cannot_be_one_is_a_usage_error(
    below: str, line: list[str], tmp_path: Path, tiny_folder: Path
) -> None:
    (tmp_path / "file").write_text("")
    homes = {"long": tmp_path / ("x" * 300), "\udcff": tmp_path / "\udcff"}
    home = homes.get(below, tmp_path / "file" / below)
    error = Command(home).error(2, *line, *([tiny_folder] if line[-1] == "add" else []))
    assert str(home)[:80] in error["message"]
    assert error["hint"]


def test_quiet_and_verbose_exclude_each_other(cyberkv: Command) -> None:
    assert cyberkv.error(2, "-q", "-v", "list")["kind"] == "usage"


def test_no_command_shows_the_help_page() -> None:
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: cyberkv")
    assert result.stdout == ""


def test_threads_do_not_spin_while_they_wait_unless_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda: None)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    main()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    main()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert re.fullmatch(r"cyberkv, version \d+\.\d+\.\d+\n", result.stdout)


def test_errors_for_a_person_go_to_stderr_with_a_hint(story: Command) -> None:
    result = story("show", "nothing-of-this-name", ok=False)
    assert result.exit_code == 3
    assert result.stdout == ""
    message, hint = result.stderr.splitlines()
    assert message.startswith("error: ")
    assert "nothing-of-this-name" in message
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fork story --at 999", "give 0 to 85"),
        ("splice story story --at 999", "give 0 to 85"),
        ("chat --from story", "cyberkv chat story"),
        ("trust add abc", "64 hexadecimal digits"),
        ("trust add abc", "ckv1"),
    ],
)
def test_a_mistake_is_told_with_what_to_give_instead(line: str, words: str, story: Command) -> None:
    error = story.error(2, *line.split())
    assert words in error["message"] + error["hint"]


def test_usage_errors_say_where_help_is(story: Command) -> None:
    error = story.error(2, "fork", "story", "--at", "many")
    assert error["kind"] == "usage"
    assert error["hint"] == "see `cyberkv fork -h`"


@pytest.mark.parametrize(
    ("typed", "meant"), [("prefil", "prefill"), ("lst", "list"), ("wlak", "walk"), ("publsh", "publish")]
)
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str, tmp_path: Path) -> None:
    error = Command(tmp_path / "none").error(2, typed)
    assert (error["kind"], error["hint"]) == ("usage", "see `cyberkv -h`")
    assert error["message"] == f"No such command {typed!r}. Did you mean {meant!r}?"
    assert "Did you mean" not in Command(tmp_path / "none").error(2, "xyzzyxyzzy")["message"]


def test_the_data_of_an_error_stand_beside_its_words(story: Command) -> None:
    absent = str(Cid.of(b"absent", "raw", "blake3"))
    error = story.error(3, "show", absent)
    assert (error["kind"], error["cid"]) == ("block-not-found", absent)
    assert story.error(4, "show", "b" + "!" * 58)["kind"] == "malformed-cid"


ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_class_has_its_exit_code(kind: type[errors.CyberKVError]) -> None:
    described = failure.describe(kind("words", hint="do this", cid="b"))
    assert described == (kind.exit_code, kind.kind, "words", "do this", {"cid": "b"})
    assert 1 <= described.exit_code <= 8


def test_other_errors_are_unexpected_and_show_their_place_on_demand(
    story: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("cyberkv.cli.show.resolve", broken)
    quiet = story("show", "story", ok=False)
    assert quiet.exit_code == 1
    assert quiet.stderr.startswith("error: ZeroDivisionError: oh\n")
    assert "Traceback" not in quiet.stderr
    for loud in (["-v", "-v"], ["-vv"]):
        result = story(*loud, "show", "story", "--json", ok=False)
        assert "Traceback" in result.stderr
        assert result.json["error"]["kind"] == "unexpected"
    assert "Traceback" not in story("-v", "show", "story", ok=False).stderr


def test_a_full_disk_outside_the_store_is_full_too() -> None:
    assert failure.describe(OSError(28, "No space left on device")).exit_code == 8
    assert failure.describe(OSError(5, "Input/output error")).exit_code == 1


def test_ctrl_c_is_130(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cyberkv.cli.show.resolve", interrupted)
    assert story.error(130, "show", "story")["kind"] == "interrupted"


def test_foreign_text_cannot_steer_the_terminal(cyberkv: Command) -> None:
    cyberkv("prefill", "-", "--name", "evil", stdin="\x1b[2J\x07 hidden \u202egnp.exe" + "x" * 30)
    page = cyberkv("walk", "evil").stdout
    assert "␛[2J␇ hidden" in page
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", page)
