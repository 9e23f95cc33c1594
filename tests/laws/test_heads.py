"""Heads move as in a plain dictionary, and of writers who go on from one head one moves it."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE

from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from tests.laws.test_index import fresh_index

ROOTS = [Cid.of(bytes([number]), "dag-cbor", "sha2-256") for number in range(4)]
NAMES = st.sampled_from(["a", "ab"])
MOVES = st.tuples(st.just("advance"), NAMES, st.sampled_from(ROOTS), st.sampled_from([None, *ROOTS]))
SETS = st.tuples(st.just("set"), NAMES, st.sampled_from(ROOTS), st.none())
DROPS = st.tuples(st.just("drop"), NAMES, st.just(ROOTS[0]), st.none())

WRITER = """
import sys
from pathlib import Path
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
who, rounds, how = sys.argv[2], int(sys.argv[3]), sys.argv[4]
with Index(Path(sys.argv[1])) as index:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(rounds):
        before = index.head("talk").root
        root = Cid.of(f"{who} {number}".encode(), "dag-cbor", "sha2-256")
        if how == "set":
            index.set_head("talk", root, str(before))
        moved = how == "set" or index.advance("talk", root, str(before), expected=before)
        if moved:
            print(root)
"""
ROUNDS, WRITERS = 100, 3


@settings(max_examples=30)
@given(st.lists(st.one_of(MOVES, SETS, DROPS), max_size=12))
def test_a_head_moves_only_from_where_it_is_expected(moves: list[tuple[str, str, Cid, Cid | None]]) -> None:
    logs: dict[str, list[Cid]] = {}
    with fresh_index() as index:
        for kind, name, root, expected in moves:
            log = logs.get(name, [])
            head = log[-1] if log else None
            if kind == "advance":
                assert index.advance(name, root, "", expected=expected) == (head in (expected, root))
            elif kind == "set":
                index.set_head(name, root, "")
            elif log:
                index.drop(name)
            if kind == "drop":
                logs.pop(name, None)
            elif head != root and (kind == "set" or head == expected):
                logs[name] = [*log, root]
        assert {each.name: each.root for each in index.heads()} == {name: log[-1] for name, log in logs.items()}
        assert {name: [each.root for each in index.log(name)] for name in logs} == logs
        assert list(index.check_names()) == []


def race(folder: Path, how: str) -> tuple[list[tuple[str, str]], int]:
    """Let processes move one head at once. Gives the log as (root, what its writer went on from), and moves in all."""
    with Index(folder / "index") as index:
        index.set_head("talk", ROOTS[0], "")
    line = [sys.executable, "-c", WRITER, str(folder / "index")]
    writers = [
        subprocess.Popen([*line, str(who), str(ROUNDS), how], stdin=PIPE, stdout=PIPE, text=True)
        for who in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate()[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    with Index(folder / "index") as index:
        return [(str(each.root), each.created) for each in index.log("talk")], sum(map(len, said))


def test_of_processes_that_go_on_from_one_head_one_moves_it(tmp_path: Path) -> None:
    log, moved = race(tmp_path, "advance")
    assert len(log) == moved + 1 > ROUNDS  # whoever was told that it moved has moved it
    assert all(before == root for (root, _), (_, before) in pairwise(log))


def test_control_a_head_that_is_read_and_then_set_is_overwritten(tmp_path: Path) -> None:
    log, moved = race(tmp_path, "set")
    assert len(log) == moved + 1
    assert any(before != root for (root, _), (_, before) in pairwise(log))
