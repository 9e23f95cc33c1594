"""What a home keeps about access, damaged: a typed error says where, and nothing of it is used."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph import dagcbor
from cyberkv.cybergraph.access.folder import AccessFolder
from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.access.visibility import Mark, Marks
from cyberkv.cybergraph.dagcbor import Value, decode
from cyberkv.cybergraph.errors import Corrupt, UnsupportedFormat
from tests.access.test_negative_keys import LINEAGE_OF_ALL, grant


def places(value: Value, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Give the place of each value within a value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


def put(value: Value, path: tuple[str | int, ...], other: Value) -> Value:
    if not path:
        return other
    copy: Any = dict(value) if isinstance(value, dict) else list(value)  # type: ignore[arg-type]
    copy[path[0]] = put(copy[path[0]], path[1:], other)
    return copy  # type: ignore[no-any-return]


OTHERS: list[Value] = [-1, 1 << 60, True, {"zz": 0}, [["x"]], "\x1b[2J" * 5000, "yesterday", b"x", b"x" * 5000]
MARKS = Marks((Mark(0, 4, "private", bytes(32)),))


@pytest.mark.parametrize("node", [LINEAGE_OF_ALL, MARKS], ids=lambda node: type(node).__name__)
def test_a_damaged_file_of_the_access_folder_is_told_with_what_to_do(tmp_path: Path, node: Lineage | Marks) -> None:
    """Every value in it, in turn, is something else."""
    folder = AccessFolder(tmp_path / "access")
    if isinstance(node, Lineage):
        folder.keep(node)
    else:
        folder.change_marks(lambda _: node)
    read = (lambda: folder.lineage("talk")) if isinstance(node, Lineage) else folder.marks
    assert read() == node
    [path] = [each for each in (tmp_path / "access").rglob("*") if each.is_file() and each.stat().st_size]
    value = decode(node.encode())
    refused = 0
    for place in places(value):
        for other in OTHERS:
            damaged = dagcbor._encode(put(value, place, other), 9)
            path.write_bytes(damaged)
            error = None
            try:
                found = read()
            except Corrupt as caught:
                error = caught
            except UnsupportedFormat:  # of a later version: nobody says that it is damaged
                assert place == ("version",)
                continue
            if error is None:  # it is of the kind that belongs there: a label, a number
                assert found is not None
                assert found.encode() == damaged
            else:
                assert str(path) in error.hint, place
                refused += 1
    assert refused > 6 * len(list(places(value)))


def test_a_lineage_in_the_place_of_another_is_damage(tmp_path: Path) -> None:
    folder = AccessFolder(tmp_path / "access")
    for name in ("talk", "other"):
        folder.keep(replace(LINEAGE_OF_ALL, name=name))
    first, second = (tmp_path / "access" / "given").iterdir()
    first.write_bytes(second.read_bytes())
    for attempt in (lambda: [folder.lineage(name) for name in ("talk", "other")], lambda: list(folder.lineages())):
        with pytest.raises(Corrupt):
            attempt()


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:9] + b"\xff" + data[10:], lambda _: b""])
def test_a_damaged_grant_of_one_s_own_is_signed_again(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    folder, made = AccessFolder(tmp_path / "access"), grant()
    assert LINEAGE_OF_ALL.last is not None
    state = replace(LINEAGE_OF_ALL, last=replace(LINEAGE_OF_ALL.last, grant=made.cid()))
    folder.keep_published(state, made)
    assert folder.grant(state) == made
    assert folder.grant(LINEAGE_OF_ALL) is None
    [path] = (tmp_path / "access" / "grants").iterdir()
    path.write_bytes(spoil(path.read_bytes()))
    assert folder.grant(state) is None
