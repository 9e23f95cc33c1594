"""What pages are computed from: places, sharing, windows, trees, and what is remembered."""

import re
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway.pages import conversation, family
from cyberkv.cybergraph.gateway.pages.cache import Cache
from cyberkv.cybergraph.gateway.pages.family import Kin
from cyberkv.cybergraph.gateway.pages.place import Place, block_url
from cyberkv.cybergraph.gateway.pages.reader import Reader
from cyberkv.cybergraph.gateway.pages.render import STYLE, short, time, title
from cyberkv.cybergraph.gateway.pages.sharing import MOST_CELLS, Sharer, cells, common_blocks, runs, sharers
from cyberkv.cybergraph.nodes import Conversation
from tests.wire.explorer import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize(
    ("path", "crumbs", "segment", "block"),
    [
        ("bafy", [], None, None),
        ("bafy/", [], None, None),
        ("bafy/segments/3", ["Root", "Segment 3"], 3, None),
        ("bafy/segments/3/", ["Root", "Segment 3"], 3, None),
        ("bafy/segments/0/links/17/to", ["Root", "Segment 0", "Block 17"], 0, 17),
        ("bafy/segments/3/links/17/to", ["Root", "Segment 3", "Block 785"], 3, 785),
        ("bafy/links/17/to", ["Root", "Link 17"], None, None),
        ("bafy/segments/0/links/17/to/model", ["Root", "Segment 0", "Block 17", "Model"], 0, None),
        ("bafy/parent/model", ["Root", "Parent", "Model"], None, None),
        ("bafy/a b/x%2Fy", ["Root", "a b", "x%2Fy"], None, None),
        ("bafy//x", ["Root", "", "x"], None, None),
    ],
)
def test_a_place_is_read_from_its_path(path: str, crumbs: list[str], segment: int | None, block: int | None) -> None:
    place = Place(path)
    assert [crumb.words for crumb in place.crumbs] == crumbs
    assert (place.segment, place.block) == (segment, block)
    if crumbs:
        assert [place.crumbs[0].url, place.crumbs[-1].url] == ["/ipfs/bafy", place.url]


def test_addresses_are_escaped() -> None:
    assert Place("bafy/a b/\u00fc").below("x/y", 0, '"') == "/ipfs/bafy/a%20b/%C3%BC/x%2Fy/0/%22"
    assert Place(block_url("bafy", 785).removeprefix("/ipfs/")).block == 785


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 40), st.booleans())
def test_runs_say_of_each_block_who_holds_it(shared: list[int], blocks: int, first_is_parent: bool) -> None:
    found = [
        Sharer(Cid.of(b"%d" % at, "dag-cbor", "sha2-256"), None, min(count, blocks), first_is_parent and at == 0)  # type: ignore[arg-type]
        for at, count in enumerate(shared)
    ]
    cut = runs(blocks, found)
    assert [at for run in cut for at in range(run.start, run.end)] == list(range(blocks))
    for run in cut:
        for at in range(run.start, run.end):
            holders = [each for each in found if each.blocks > at]
            assert run.others == len(holders)
            assert run.with_parent == any(each.is_parent for each in holders)
    assert all(a[2:] != b[2:] for a, b in pairwise(cut))


@given(st.integers(1, 5000), st.lists(st.integers(0, 5000), max_size=4))
def test_a_cell_never_says_more_than_all_its_blocks_have(blocks: int, shared: list[int]) -> None:
    cid = Cid.of(b"", "dag-cbor", "sha2-256")
    found = [Sharer(cid, None, min(count, blocks), is_parent=False) for count in shared]  # type: ignore[arg-type]
    strip = list(cells(runs(blocks, found)))
    assert len(strip) <= MOST_CELLS
    assert [strip[0].start, strip[-1].end] == [0, blocks]
    assert all(a.end == b.start for a, b in pairwise(strip))
    for cell in strip:
        assert cell.others == min(sum(each.blocks > at for each in found) for at in range(cell.start, cell.end))


def oracle(world: World, a: Conversation, b: Conversation) -> int:
    """Common leading blocks, all blocks of both compared."""
    pairs = zip(block_cids(world.store, a), block_cids(world.store, b), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_common_blocks_are_those_that_comparing_all_finds(world: World) -> None:
    reader = Reader(world.content())
    public = {name: load_root(world.store, cid) for name, cid in world.roots.items() if name != "secret"}
    counts = {(a, b): common_blocks(reader, public[a], public[b]) for a in public for b in public}
    assert counts == {(a, b): oracle(world, public[a], public[b]) for a in public for b in public}
    assert (counts["harbour", "grown"], counts["harbour", "fork"], counts["fork", "fork of the fork"]) == (
        300,
        200,
        220,
    )
    assert (counts["harbour", "short"], counts["harbour", "other model"], counts["short", "hostile"]) == (0, 0, 1)
    assert counts["harbour", "harbour"] == 300


def test_few_segments_are_read_however_long_the_chains(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    content, asked = world.content(), []
    reader = Reader(content)
    known = reader.conversations(content.roots())
    real = content.get
    monkeypatch.setattr(content, "get", lambda cid: (asked.append(cid), real(cid))[1])
    root = reader.conversation(world.roots["grown"])
    assert root is not None
    found = sharers(reader, world.roots["grown"], root, known)
    assert [each.blocks for each in found] == [300, 200, 200]
    assert len(asked) <= 2 * len(known)
    before = len(asked)
    sharers(reader, world.roots["grown"], root, known)
    assert len(asked) == before


def test_a_window_lies_within_one_segment() -> None:
    for block_size in range(1, 1025):
        each = conversation.window_blocks(block_size)
        assert 256 % each == 0
        assert each == 1 or each * block_size <= conversation.WINDOW_TOKENS


def names(world: World, kin: Kin) -> object:
    name = next(name for name, cid in world.roots.items() if cid == kin.cid)
    return {(name, kin.here): [names(world, below) for below in kin.below]} if kin.below else (name, kin.here)


@pytest.mark.parametrize("name", ["harbour", "fork", "fork of the fork"])
def test_the_tree_is_the_same_from_wherever_it_is_seen(world: World, name: str) -> None:
    reader = Reader(world.content())
    root = reader.conversation(world.roots[name])
    assert root is not None
    found = family.family(reader, world.roots[name], root, reader.conversations(world.content().roots()))
    here = [each == name for each in ("harbour", "fork", "fork of the fork")]
    assert names(world, found.top) == {("harbour", here[0]): [{("fork", here[1]): [("fork of the fork", here[2])]}]}
    assert not found.more_above
    assert not found.more_below


def test_long_lines_of_descent_are_cut_on_both_sides(world: World, tmp_path: Path) -> None:
    line = make_world(tmp_path)
    chain = line.put_blocks(range(16))
    line.put("0", chain)
    for number in range(1, 40):
        line.put(str(number), chain, parent=str(number - 1), title=f"generation {number}")
    reader = Reader(line.content())
    root = reader.conversation(line.roots["20"])
    assert root is not None
    found = family.family(reader, line.roots["20"], root, reader.conversations(line.content().roots()))
    assert (found.more_above, found.more_below) == (True, True)
    depth, kin = 0, found.top
    while kin.below:
        depth, kin = depth + 1, kin.below[0]
    assert depth == family.MOST_ANCESTORS + family.MOST_DEPTH


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 12))
def test_a_cache_gives_what_was_made_and_stays_within_its_weight(keys: list[int], most: int) -> None:
    cache, held = Cache[int, int](most), dict[int, int]()
    for key in keys:
        assert cache.get(key, lambda key=key: held.setdefault(key, key + 1), lambda value: value) == key + 1  # type: ignore[misc]
        assert sum(value for value, _ in cache._held.values()) == cache._weight <= most


def test_a_cache_keeps_what_was_used_last_and_no_failure() -> None:
    cache, made = Cache[str, str](2), list[str]()

    def make(key: str) -> str:
        made.append(key)
        return key

    for key in "abacab":
        cache.get(key, lambda key=key: make(key))  # type: ignore[misc]
    assert made == ["a", "b", "c", "b"]
    with pytest.raises(ZeroDivisionError):
        cache.get("x", lambda: str(1 // 0))
    assert cache.get("x", lambda: "sound") == "sound"


def test_foreign_words_are_cut_isolated_and_escaped() -> None:
    assert title("<b>\u202e&") == "<bdi>&lt;b&gt;\ufffd&amp;</bdi>"
    assert title(" \n") == "<i>untitled</i>"
    assert len(title("x" * 10_000)) < 200
    assert short("b" * 59) == f'<code title="{"b" * 59}">bbbbbbbb\u2026bbbbbb</code>'
    assert time("2026-03-02T09:02:00Z") == '<time datetime="2026-03-02T09:02:00Z">2026-03-02 09:02 UTC</time>'
    assert time('"><script>') == "&#34;&gt;&lt;script&gt;"
    assert time("") == "not said"


def palettes() -> list[dict[str, str]]:
    """The colours of the light and of the dark pages."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE.decode(), re.DOTALL)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part)) for part in (light, dark)]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_every_text_can_be_read_on_its_ground(palette: dict[str, str]) -> None:
    for ground in ("bg", "surface"):
        for ink in ("ink", "soft", "link"):
            assert contrast(palette[ink], palette[ground]) >= 4.5, (ink, ground)
        for mark in ("own", "parent", "other", "link"):
            assert contrast(palette[mark], palette[ground]) >= 3, (mark, ground)
    assert contrast(palette["ink"], palette["alert"]) >= 4.5
    shades = [palette[f"h{shade}"] for shade in range(8)]
    assert all(contrast(palette["ink"], shade) >= 4.5 for shade in shades)
    steps = [contrast(shade, palette["surface"]) for shade in shades]
    assert steps == sorted(steps)


def test_control_contrast_is_that_of_the_definition() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_no_colour_is_named_outside_the_palettes() -> None:
    rules = re.sub(r":root \{.*?\}", "", STYLE.decode(), flags=re.DOTALL)
    assert {*re.findall(r"#[0-9a-f]{3,8}", rules)} == {"#ffffff", "#000000"}
    assert "url(" not in rules
    assert "@import" not in rules
