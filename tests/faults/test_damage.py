"""Files that were cut, zeroed, overwritten or lost: right bytes or an error, and `fsck` does not overlook it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cyberkv.cybergraph.errors import Corrupt, CyberKVError, NotFound
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.store import DiskStore
from tests.faults import scenarios
from tests.faults.conftest import MakeHome
from tests.faults.scenarios import OLD, SCENARIOS, TALK, TALK_ROOT, Say, opened
from tests.faults.syscalls import run
from tests.wire.synthetic import contents

PAGE_BYTES = 4096
CATALOGUE, INDEX = "store/catalog/data.mdb", "index/data.mdb"
KNOWN = dict(OLD[1:]) | contents(TALK, TALK_ROOT)


def look(home: Path, say: Say) -> None:
    """Say of each question whether the answer was right, wrong, or an error of this project."""
    try:
        with DiskStore(home / "store") as store, Index(home / "index", make=False) as index:
            for cid, data in KNOWN.items():
                say(("get", _answer(lambda cid=cid: store.get(cid), data)))
            say(("list", _answer(lambda: KNOWN.keys() <= set(store.cids()), True)))
            say(("fsck", _answer(lambda: list(fsck(store, index)), [])))
            say(("head", _answer(lambda: index.head("talk").root, TALK_ROOT)))
            say(("write", _answer(lambda: store.put_many(scenarios.NEW), len(scenarios.NEW))))
            say(("delete", _answer(lambda: store.delete_many([OLD[1][0]]), 1)))
    except CyberKVError as error:
        say(("open", error.kind))


def _answer(ask: Callable[[], object], right: object) -> str:
    try:
        return "right" if ask() == right else "wrong"
    except CyberKVError as error:
        return error.kind if error.hint else f"{error.kind} without a hint"


@pytest.fixture
def home(make_home: MakeHome) -> Path:
    made = make_home(SCENARIOS["write"])
    with opened(made) as (_, index):
        index.set_head("talk", TALK_ROOT, "")
    return made


@contextmanager
def copied(home: Path) -> Iterator[Path]:
    copy = home.with_name("broken")
    shutil.copytree(home, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def outcome(home: Path) -> dict[str, set[str]]:
    ended = run(look, home)
    assert ended.exit_code == 0, ended.said
    found: dict[str, set[str]] = {}
    for question, answer in ended.said:
        found.setdefault(question, set()).add(answer)
    assert "wrong" not in found.get("get", ()), "bytes that are not those of their CID"
    return found


def is_overlooked(found: dict[str, set[str]]) -> bool:
    """Whether something acknowledged is gone and nothing was said."""
    return "open" not in found and found["fsck"] == {"right"} and not (
        found["get"] == found["list"] == found["head"] == {"right"}
    )  # fmt: skip


def test_the_control(home: Path) -> None:
    assert set().union(*outcome(home).values()) == {"right"}


@pytest.mark.parametrize("fill", [b"\0", b"\xff"], ids=["zeros", "ones"])
@pytest.mark.parametrize("name", [CATALOGUE, INDEX])
def test_an_overwritten_page_of_a_database(home: Path, name: str, fill: bytes) -> None:
    sound = (home / name).read_bytes()
    noticed = 0
    for at in range(0, len(sound), PAGE_BYTES):
        with copied(home) as broken:
            (broken / name).write_bytes(sound[:at] + fill * PAGE_BYTES + sound[at + PAGE_BYTES :])
            found = outcome(broken)
        assert not is_overlooked(found), (at // PAGE_BYTES, found)
        noticed += set().union(*found.values()) != {"right"}
    assert noticed > 2  # else the pages that matter were not met


@pytest.mark.parametrize("name", [CATALOGUE, INDEX])
def test_a_database_that_is_cut_short(home: Path, name: str) -> None:
    size_bytes = (home / name).stat().st_size
    noticed = 0
    for kept_bytes in [0, 100, *range(PAGE_BYTES, size_bytes, PAGE_BYTES), size_bytes - 1]:
        with copied(home) as broken:
            os.truncate(broken / name, kept_bytes)
            found = outcome(broken)
        if found == {"open": {"corrupt"}}:
            noticed += 1
        else:  # what is gone held nothing
            assert kept_bytes % PAGE_BYTES == 0, kept_bytes
            assert set().union(*found.values()) == {"right"}, (kept_bytes, found)
    assert noticed > size_bytes // PAGE_BYTES // 2


def test_a_database_that_is_gone(home: Path) -> None:
    (home / CATALOGUE).unlink()
    with pytest.raises(NotFound):
        DiskStore(home / "store", read_only=True)
    assert outcome(home) == {"open": {"corrupt"}}


def test_an_empty_database_that_is_only_read(home: Path) -> None:
    (home / CATALOGUE).write_bytes(b"")
    with pytest.raises(Corrupt, match="empty"):
        DiskStore(home / "store", read_only=True)


@pytest.mark.parametrize("how", ["gone", "empty", "cut", "zeroed"])
def test_slab_files(home: Path, how: str) -> None:
    for slab in sorted((home / "store").glob("*.kvd")):
        with copied(home) as broken:
            path = broken / "store" / slab.name
            match how:
                case "gone":
                    path.unlink()
                case "empty":
                    os.truncate(path, 0)
                case "cut":
                    os.truncate(path, 3 * PAGE_BYTES + 1000)
                case "zeroed":
                    path.write_bytes(bytes(path.stat().st_size))
            found = outcome(broken)
        assert found["get"] == {"right", "digest-mismatch"}
        assert found["fsck"] == {"wrong"}  # it has findings
        assert found["write"] == {"right"}


@pytest.mark.parametrize("text", [b"", b"\0" * 16, b"cyberkv store 99\n", b"\xff\xfe"])
def test_a_damaged_format_file(home: Path, text: bytes) -> None:
    (home / "store/FORMAT").write_bytes(text)
    assert outcome(home) == {"open": {"unsupported-format"}}
