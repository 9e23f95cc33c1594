"""The command in this process, on homes with a small random model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from cyberkv.cli.main import cli
from cyberkv.cybergraph.access import passphrase
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests import once
from tests.numerics.tiny import tiny_model


class Result(NamedTuple):
    """What one command line did."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one JSON object of stdout; fails if there is anything else."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


class Command:
    """`cyberkv` with a home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *args: object, stdin: str | bytes | None = None, ok: bool = True) -> Result:
        """Run a command line; with `ok`, it has to succeed."""
        line = ["--home", str(self.home), *map(str, args)]
        result = CliRunner().invoke(cli, line, input=stdin)
        if ok:
            assert result.exit_code == 0, result.output
        return Result(result.exit_code, result.stdout, result.stderr)

    def json(self, *args: object, stdin: str | bytes | None = None) -> Any:
        return self("--json", *args, stdin=stdin).json

    def damage(self, leaf: str) -> None:
        """Flip a bit of a stored leaf, behind the store's back."""
        with DiskStore(self.home / "store", read_only=True) as store:
            bytes_of_leaf = store.get(Cid.parse(leaf))
        [(slab, data)] = [
            (slab, data)
            for slab in (self.home / "store").glob("slab-*")
            if bytes_of_leaf in (data := slab.read_bytes())
        ]
        at = data.index(bytes_of_leaf)
        slab.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    def error(self, exit_code: int, *args: object) -> dict[str, Any]:
        """Run a command line that has to fail with this code, and give its error."""
        result = self("--json", *args, ok=False)
        assert result.exit_code == exit_code, result
        assert set(result.json) == {"error"}
        error: dict[str, Any] = result.json["error"]
        assert error["kind"]
        assert error["message"]
        return error


@pytest.fixture(autouse=True)
def once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    once.remember(monkeypatch)


@pytest.fixture
def answers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `doctor`, too, take the known answer that was found before: for tests that are not about it."""
    once.remember_answers(monkeypatch)


def weaken_passphrases(patch: pytest.MonkeyPatch) -> None:
    """Take the least that is taken, not what is chosen: commands and keys in tests are many."""
    patch.setattr(passphrase, "MEMORY_KIB", passphrase.LEAST_MEMORY_KIB)
    patch.setattr(passphrase, "PASSES", passphrase.LEAST_PASSES)


@pytest.fixture(autouse=True)
def weak_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    weaken_passphrases(monkeypatch)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the built-in model is converted to, once for all tests that need it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
    for name in ("CYBERKV_HOME", "CYBERKV_DEVICE", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def first_home(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A home that knows one model. Tests work on copies."""
    home = tmp_path_factory.mktemp("first") / "home"
    Command(home)("model", "add", tiny_folder, "--name", "tiny")
    return home


@pytest.fixture
def cyberkv(first_home: Path, tmp_path: Path) -> Command:
    """The command on a home of its own that knows the model `tiny` and holds nothing."""
    return Command(shutil.copytree(first_home, tmp_path / "home"))


@pytest.fixture
def elsewhere(first_home: Path, tmp_path: Path) -> Command:
    """Another home that knows the same model and holds nothing."""
    return Command(shutil.copytree(first_home, tmp_path / "elsewhere"))


STORY = "The lighthouse keeper counted forty-one ships before the fog came in and hid the bay."


@pytest.fixture(scope="session")
def story_home(tmp_path_factory: pytest.TempPathFactory, first_home: Path) -> Path:
    home = shutil.copytree(first_home, tmp_path_factory.mktemp("story") / "home")
    with once.remembering():
        Command(home)("prefill", "-", "--name", "story", stdin=STORY)
    return home


@pytest.fixture
def story(story_home: Path, tmp_path: Path) -> Command:
    """The command on a home with the conversation `story`: 85 tokens, one per byte."""
    return Command(shutil.copytree(story_home, tmp_path / "home"))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make small random models, each kind once."""
    made: dict[str, Path] = {}

    def make(family: str, **changes: Any) -> Path:
        kind = f"{family} {sorted(changes.items())}"
        if kind not in made:
            made[kind] = tiny_model(family, tmp_path_factory.mktemp("kind"), **changes)
        return made[kind]

    return make


@pytest.fixture
def add_tiny(tmp_path: Path, made_once: Callable[..., Path]) -> Callable[..., Path]:
    """Make another small random model in a folder of its own."""

    def make(name: str, family: str = "llama", **changes: Any) -> Path:
        return shutil.copytree(made_once(family, **changes), tmp_path / name)

    return make


@pytest.fixture
def first(tmp_path: Path) -> Command:
    """A reader's home, empty."""
    return Command(tmp_path / "first")


@pytest.fixture
def second(tmp_path: Path) -> Command:
    """Another reader's home, empty."""
    return Command(tmp_path / "second")


@pytest.fixture
def car(tmp_path: Path) -> Path:
    """Where a CAR file may be written."""
    return tmp_path / "sealed.car"


def public_key(command: Command) -> str:
    """Make the key of a home and give its public half."""
    key: str = command.json("key", "new")["public"]
    return key
