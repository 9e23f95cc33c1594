"""What `stats` says of sharing: by source, against a count of sets, and apart for one conversation and for many."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cli.context import Session
from cyberkv.cybergraph.ceilings import fan_out, resent, resent_in_blocks
from cyberkv.cybergraph.chain import fork_root, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Head
from cyberkv.cybergraph.reuse import SOURCES, Census, take_census
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.survey import Survey
from tests.cli.conftest import STORY, Command
from tests.contracts.synthetic import BLOCK_SIZE, make_conversation

BLOCK_BYTES = 1000
END = 99


def tokens(seed: int, count: int) -> list[int]:
    return [(seed * 31 + 7 * i) % 90 for i in range(count)]


def clock(minute: int) -> str:
    return f"2025-01-01T{minute // 60:02}:{minute % 60:02}:00Z"


class Home:
    """Logs over a store, without bytes that a model made."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.logs: dict[str, list[Head]] = {}
        self.minute = 0

    def record(self, name: str, text: Sequence[int], *, after_minutes: int = 10) -> Cid:
        self.minute += after_minutes
        return self._keep(name, make_conversation(self.store, text))

    def fork(self, root: Cid, at: int, name: str) -> Cid:
        self.minute += 10
        return self._keep(name, fork_root(self.store, root, at, block_bytes=BLOCK_BYTES)[0])

    def _keep(self, name: str, root: Cid) -> Cid:
        self.logs.setdefault(name, []).append(Head(name, root, clock(self.minute)))
        return root

    def census(self, *, ends: frozenset[int] = frozenset({END})) -> Census:
        return take_census(
            self.logs.values(), Survey.of(self.store), self.store, block_bytes=lambda _: BLOCK_BYTES,
            turn_ends=lambda _: ends,
        )  # fmt: skip


SYSTEM = [*tokens(1, 23), END]  # six blocks, the last ends the turn
SHOTS = [*tokens(2, 15), END, *tokens(3, 15), END]  # eight blocks


def sources(census: Census) -> dict[str, int]:
    return {source: count for source, count in census.shared_blocks.items() if count}


def test_each_source_is_told_from_the_others() -> None:
    home = Home()
    home.record("a", SYSTEM + tokens(4, 8))
    home.record("b", SYSTEM + tokens(5, 8))
    assert sources(home.census()) == {"system prompt": 6}
    home.record("b", SYSTEM + tokens(5, 16))
    assert sources(home.census()) == {"system prompt": 6, "chat": 8}
    home.record("c", SYSTEM + SHOTS + tokens(6, 8))
    home.record("d", SYSTEM + SHOTS + tokens(7, 8))
    assert sources(home.census()) == {"system prompt": 18, "chat": 8, "few-shot": 8}
    home.fork(home.logs["c"][0].root, 60, "e")
    assert sources(home.census()) == {"system prompt": 18, "chat": 8, "few-shot": 8, "tree": 15}
    home.record("f", SYSTEM + tokens(8, 8), after_minutes=1)
    assert sources(home.census()) == {"system prompt": 18, "chat": 8, "few-shot": 8, "tree": 15, "agents": 6}
    assert {*sources(home.census())} == {*SOURCES}
    # Without the tokens that end a turn, what comes after the first one is not told apart.
    assert sources(home.census(ends=frozenset()))["system prompt"] == 26


def test_a_fork_of_what_was_forgotten_shares_with_nobody() -> None:
    home = Home()
    home.fork(home.record("a", SYSTEM + tokens(4, 10)), 20, "b")
    assert sources(home.census()) == {"tree": 5}
    del home.logs["a"]
    assert sources(home.census()) == {}


def test_damaged_nodes_are_counted_as_far_as_they_are_named() -> None:
    home = Home()
    home.record("a", SYSTEM + tokens(4, 10))
    home.record("b", SYSTEM + tokens(5, 10))
    home.record("a", SYSTEM + tokens(4, 18))
    sound = home.census()
    for cid in Survey.of(home.store).blocks:  # the damage of a disk
        home.store._blocks[cid] = b"\0"
    damaged = home.census()
    assert (damaged.blocks_without, damaged.blocks_with) == (sound.blocks_without, sound.blocks_with)
    assert sum(damaged.shared_blocks.values()) == sum(sound.shared_blocks.values()) > 0


def test_the_same_words_elsewhere_are_no_source() -> None:
    home = Home()
    home.record("a", SYSTEM)
    home.record("b", [1, *SYSTEM])
    assert sources(home.census()) == {}


TEXTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 1), max_size=6), st.integers(0, 3)), max_size=8
)


@given(TEXTS)
def test_counts_are_those_of_sets(rows: list[tuple[str, list[int], int]]) -> None:
    home, every = Home(), []
    for name, values, rest in rows:
        text = [value for value in values for _ in range(BLOCK_SIZE)] + [5] * rest
        home.record(name, text, after_minutes=rest)
        every.append(values)
    census = home.census()
    distinct = {tuple(values[:end]) for values in every for end in range(1, len(values) + 1)}
    assert census.roots == len(every)
    assert census.blocks_without == sum(map(len, every))
    assert census.blocks_with == len(distinct)
    assert census.blocks_with + sum(census.shared_blocks.values()) == census.blocks_without
    assert census.bytes_with == len(distinct) * BLOCK_BYTES
    assert census.single.found_tokens == census.shared_blocks["chat"] * BLOCK_SIZE
    rest_shared = sum(census.shared_blocks.values()) - census.shared_blocks["chat"]
    assert census.fleet.found_tokens == rest_shared * BLOCK_SIZE


@pytest.mark.parametrize("turn_tokens", [4, 12, 6, 7, 9])
@pytest.mark.parametrize("turns", [1, 10, 50])
def test_a_conversation_of_equal_turns_reaches_the_ceiling_less_what_fills_no_block(
    turns: int, turn_tokens: int
) -> None:
    home, text = Home(), tokens(9, turns * turn_tokens)
    for turn in range(1, turns + 1):
        home.record("talk", text[: turn * turn_tokens])
    single = home.census().single
    assert single.ceiling == resent(turns)
    assert single.found == resent_in_blocks(turns, turn_tokens, BLOCK_SIZE)
    assert single.found + single.block_size_loss == single.ceiling
    assert (single.block_size_loss > 0) == (turns > 1 and turn_tokens % BLOCK_SIZE > 0)
    assert home.census().fleet.found == 0  # one conversation has no others


@pytest.mark.parametrize("agents", [2, 10])
def test_a_fleet_has_its_own_figure(agents: int) -> None:
    home = Home()
    for agent in range(agents):
        home.record(f"agent{agent}", SYSTEM, after_minutes=0)
    census = home.census()
    assert census.fleet.found == census.fleet.ceiling == fan_out(agents)
    assert census.single.found == 0
    assert sources(census) == {"agents": 6 * (agents - 1)}


def test_memory_is_that_of_distinct_blocks() -> None:
    """A tree of thoughts: whoever copies the whole prefix to each of the 31 nodes keeps five times as much."""
    home = Home()

    def grow(name: str, root: Cid, depth: int) -> None:
        for side in (0, 1):
            text = [*chain_tokens(root), *tokens(40 + 2 * depth + side + int(name[1:] or 0), 8)]
            child = home.record(f"n{len(home.logs)}", text)
            if depth:
                grow(f"n{len(home.logs)}", child, depth - 1)

    def chain_tokens(root: Cid) -> list[int]:
        from cyberkv.cybergraph.chain import tokens as all_tokens

        return all_tokens(home.store, load_root(home.store, root))

    grow("n0", home.record("n0", SYSTEM), 3)
    census = home.census()
    assert census.roots == 31
    assert census.blocks_with == 6 + 2 * 30
    assert Fraction(census.blocks_without, census.blocks_with) > 4


def test_stats_print_it(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "now", lambda _: clock(0))  # what is at work at one time is a question of minutes
    story = cyberkv
    story("prefill", "-", "--name", "story", stdin=STORY)
    story("prefill", "-", "--from", "story", stdin=" More.")
    story("fork", "story", "--at", 40, "--name", "branch")
    story("prefill", "-", "--name", "other", stdin=STORY[:50] + "#")
    reuse = story.json("stats")["reuse"]
    assert (reuse["roots"], reuse["blocks_without_sharing"], reuse["blocks_with_sharing"]) == (4, 15, 5)
    assert reuse["bytes_with_sharing"] == 5 * 16 * 768
    shared = {source: each["blocks"] for source, each in reuse["sources"].items() if each["blocks"]}
    assert shared == {"chat": 5, "tree": 2, "agents": 3}
    assert reuse["single"]["hit"] == 80 / (85 + 91 + 40 + 51)
    assert reuse["single"]["block_size_loss"] == 5 / (85 + 91 + 40 + 51)
    page = story("stats").stdout
    assert "shared payload" in page
    assert "180.0 KiB" in page
    assert "from tree" in page
    assert "few-shot" not in page
    assert "3 names, 4 roots in their logs\n" in page
    assert "% if all turns were equally long" in page


def test_roots_that_no_log_lists_are_counted_apart(story: Command) -> None:
    assert "stored)" not in story("stats").stdout  # the control
    story("prefill", "-", "--name", "gone", stdin="Another text altogether.")
    story("forget", "gone")
    assert "1 name, 1 root in their logs (2 stored)" in story("stats").stdout


def test_what_was_fetched_is_no_domain(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    made = story.json("publish", "story", "--public", "--sign", "--yes", "--car", tmp_path / "a.car")
    elsewhere("fetch", made["receipt"], "--from", tmp_path / "a.car")
    data, page = elsewhere.json("stats"), elsewhere("stats").stdout
    assert (data["domains"], data["signed"]) == ({}, {made["signed_by"]: 5})
    assert "domain" not in page
    assert f"fetched  5 blocks signed by {made['signed_by']}" in page
    assert "domain f32-" in story("stats").stdout  # the control


def test_blocks_that_no_text_finds_are_counted_apart(story: Command) -> None:
    assert (story.json("stats")["unindexed"], "not indexed" in story("stats").stdout) == (0, False)  # the control
    story("evict", "story", "20:30", "--mode", "fast")
    data = story.json("stats")
    assert (data["blocks"], *data["domains"].values(), data["unindexed"]) == (8, 1, 7)
    [line] = [line for line in story("stats").stdout.splitlines() if line.startswith("not indexed")]
    assert line.endswith("  7 blocks, not found by tokens: 3 of approximate conversations, 4 taken out, as by `evict`")


def test_an_empty_home_says_nothing_of_sharing(cyberkv: Command) -> None:
    assert "shared payload" not in cyberkv("stats").stdout
    assert cyberkv.json("stats")["reuse"]["single"]["hit"] == 0
