"""Pages of nodes that somebody made to hurt: valid bytes with lying counts, markup, depth, size, and holes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from starlette.applications import Starlette

from cyberkv.cybergraph import dagjson
from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.dagcbor import Value, encode
from cyberkv.cybergraph.errors import BlockNotFound, MalformedCbor, MalformedNode
from cyberkv.cybergraph.foreign import AnyCid, ForeignCid, parse_cid
from cyberkv.cybergraph.gateway import Published, Several, build_app
from cyberkv.cybergraph.gateway.carcontent import CarContent
from cyberkv.cybergraph.gateway.content import Content, Run
from cyberkv.cybergraph.gateway.pages import Lookups, Pages
from cyberkv.cybergraph.gateway.pages.family import MOST_ANCESTORS
from cyberkv.cybergraph.gateway.pages.reader import as_node
from cyberkv.cybergraph.gateway.pages.sources import NEAR
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Conversation, Model, Segment
from cyberkv.cybergraph.staging import Room, heap_room
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.norms import block_norms
from tests.wire.explorer import BLOCK_SIZE, HOSTILE_TITLE, MODEL, Page, World, browse, make_world, tokens
from tests.wire.synthetic import other_model

MOST_BYTES = 100_000
MARKUP = "<img src=x onerror=alert(1)>"


class Blocks(Content):
    """Any blocks, as a CAR file may bring them, and how often they were read."""

    def __init__(self) -> None:
        self.held: dict[AnyCid, bytes] = {}
        self.reads = 0

    def put(self, value: Value) -> Cid:
        data = encode(value)
        cid = Cid.of(data, "dag-cbor", "sha2-256")
        self.held[cid] = data
        return cid

    def roots(self) -> list[AnyCid]:
        return list(self.held)

    def size_bytes(self, cid: AnyCid) -> int | None:
        return len(self.held[cid]) if cid in self.held else None

    def get(self, cid: AnyCid) -> bytes:
        self.reads += 1
        if cid not in self.held:
            raise BlockNotFound(f"no block {cid}", cid=str(cid))
        return self.held[cid]

    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> "list[Run]":  # type: ignore[override]
        raise NotImplementedError

    def edition(self, root: AnyCid) -> str:
        raise NotImplementedError


def show(value: Value) -> Page:
    blocks = Blocks()
    return look(blocks, blocks.put(value))


def look(content: Content, cid: AnyCid) -> Page:
    page = browse(build_app(content, Pages(content)), f"/ipfs/{cid}")
    assert page.status == 200
    assert len(page.body) < MOST_BYTES
    assert not {"img", "script"} & {tag for tag, _ in page.tags}
    return page


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(MemoryStore(), Index(tmp_path / "index"))


def nested(depth: int) -> Value:
    value: Value = "the bottom"
    for _ in range(depth):
        value = {"in": value}
    return value


LINK = Cid.of(b"elsewhere", "raw", "blake3")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({MARKUP: MARKUP, "type": MARKUP}, MARKUP),
        ({"type": "x/y", "a\u202eb": "\u2066c"}, "a\ufffdb"),
        ({"a": "x" * 60_000}, "x" * 400 + "\u2026"),
        ({"a": bytes(1_000_000)}, f"{'00' * 32}\u2026 (1,000,000 bytes)"),
        ({"a": [None, True, False, 0, 1, -5]}, "null"),
        ({"a": [0, 1]}, "[0, 1]"),
        ({"a": list(range(100_000))}, "\u2026 99,936 more"),
        ({"a": ["x"] * 100_000}, "more values left out"),
        ({f"key {at}": LINK for at in range(9_000)}, "more values left out"),
        ({"a": {}, "b": []}, "empty"),
        (nested(15), "1 more value left out"),
        ([], "empty"),
        ("only text", "only text"),
        (7, "7"),
        (True, "true"),
    ],
    ids=range(15),
)
def test_any_value_is_shown_within_bounds(value: Value, says: str) -> None:
    assert says in show(value).text


def test_control_what_fits_is_shown_whole() -> None:
    page = show({"a": "x" * 400, "b": [{"c": "deep"}], "d": b"\x01\x02"})
    assert "left out" not in page.text
    assert "x" * 400 + " " in page.text
    assert "a : " in page.text
    assert "deep" in page.text
    assert "0102 (2 bytes)" in page.text


def test_links_lead_on_whatever_their_keys_are() -> None:
    blocks = Blocks()
    leaf = blocks.put({"name": "the end"})
    keys = ["plain", "sp ace", "..", ".", "", "a/b", "%2e", "\u00fc", "x" * 2000, "?q", "#f", '"']
    root = blocks.put({"to": dict.fromkeys(keys, leaf), "list": [leaf]})
    app = build_app(blocks, Pages(blocks))
    page = browse(app, f"/ipfs/{root}")
    links = [
        a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("/ipfs/") and "?" not in a["href"]
    ]
    assert len(links) == len(keys) + 1
    assert [browse(app, link).status for link in links] == [200] * len(links)
    assert all("the end" in browse(app, link).text for link in links)
    assert links.count(f"/ipfs/{leaf}") == 5  # a browser would change `..`, and a path has its limit


def test_json_and_links_to_other_forms_of_cid() -> None:
    blocks = Blocks()
    old = parse_cid("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd")
    data = dagjson.encode({"old": old, "words": MARKUP, "n": 3})
    cid = ForeignCid(b"\x01" + bytes((0xA9, 0x02)) + Cid.of(data, "raw", "sha2-256")[2:])
    blocks.held[cid] = data
    page = look(blocks, cid)
    assert "dag-json" in page.text
    assert f"/ipfs/{cid}/old" in page.links
    blocks.held[old] = b""
    home = browse(build_app(blocks, Pages(blocks)), "/")
    assert "dag-json block" in home.text
    assert "dag-pb block" in home.text
    assert {f"/ipfs/{cid}", f"/ipfs/{old}"} <= {*home.links}
    assert MARKUP in page.text


def test_a_node_that_only_claims_a_type_is_shown_as_what_it_is(world: World) -> None:
    root = load_root(world.store, world.put("sound", world.put_blocks(tokens(32))))
    for change in ({"extra": 1}, {"length": -1}, {"segments": "none"}):
        value = {**as_value(root), **change}
        page = show(value)
        assert "It claims to be a cyberkv/conversation and is none" in page.text
    inside = show({"type": "x", "it": as_value(root)})
    assert "claims" not in inside.text
    assert "Signed by" not in inside.text  # a map inside a node is no node
    assert "Signed by" in show(as_value(root)).text


def as_value(root: Conversation) -> dict[str, Value]:
    from cyberkv.cybergraph.dagcbor import decode

    value = decode(root.encode())
    assert isinstance(value, dict)
    return value


def test_a_value_that_is_not_the_whole_block_is_none_of_ours(world: World) -> None:
    cid = world.put("sound", world.put_blocks(tokens(48)))
    value = as_value(load_root(world.store, cid))
    assert as_node(cid, value) == load_root(world.store, cid)
    with pytest.raises(MalformedCbor):
        as_node(Cid.of(encode({"inside": value}), "dag-cbor", "sha2-256"), value)
    assert as_node(LINK, value) is None


def test_a_node_of_a_newer_version_is_shown_as_what_it_is(world: World) -> None:
    root = load_root(world.store, world.put("sound", world.put_blocks(tokens(32))))
    page = show({**as_value(root), "version": 2})
    assert "cyberkv/conversation" in page.text
    assert "Signed by" not in page.text


@pytest.mark.parametrize(
    "change", [{"length": (1 << 63) - 1}, {"length": 3}, {"block_size": 1}, {"segments": []}, {"length": 0}]
)
def test_counts_that_contradict_each_other_are_said_and_not_believed(world: World, change: dict[str, Value]) -> None:
    root = load_root(world.store, world.put("sound", world.put_blocks(tokens(320 * BLOCK_SIZE))))
    page = show({**as_value(root), **change})
    assert "This conversation does not fit together" in page.text


def test_a_root_over_segments_that_are_not_there(world: World) -> None:
    blocks = Blocks()
    root = load_root(world.store, world.put("sound", world.put_blocks(tokens(320 * BLOCK_SIZE))))
    cid = blocks.put(as_value(root))
    page = look(blocks, cid)
    assert "Segment 0 is not here." in page.text
    assert "320 blocks in 2 segments" in page.text
    # A root may name four million blocks, and none of them be there.
    many: dict[str, Value] = {"segments": [root.segments[0]] * 16_384, "length": 16_384 * 256 * BLOCK_SIZE}
    huge = look(blocks, blocks.put({**as_value(root), **many}))
    assert "4,194,304 blocks in 16,384 segments" in huge.text


def test_segments_that_are_something_else(world: World) -> None:
    blocks = Blocks()
    root = load_root(world.store, world.put("sound", world.put_blocks(tokens(20 * BLOCK_SIZE))))
    short = world.store.get(root.segments[0])
    value = Segment.decode(short)
    few = Segment(model=value.model, start=0, links=value.links[:3]).encode()
    fakes = {
        "damaged or not what its place needs": [
            encode({"type": "cyberkv/segment", "links": "x"}), encode({"links": [{"to": 5}]}), encode([1]),
            encode({"links": [{"to": LINK}] * 300}), encode({"links": []}),
        ],
        "block 0 is not here": [short],
        "has fewer blocks than the root says": [few],
    }  # fmt: skip
    for says, datas in fakes.items():
        for data in datas:
            segment = Cid.of(data, "dag-cbor", "sha2-256")
            blocks.held[segment] = data
            if says.startswith("has"):
                blocks.held |= {link.to: world.store.get(link.to) for link in value.links[:3]}
            assert says in look(blocks, blocks.put({**as_value(root), "segments": [segment]})).text


def test_a_long_line_of_parents_is_not_followed_to_its_end(world: World) -> None:
    blocks = Blocks()
    value = as_value(load_root(world.store, world.put("sound", [], [1, 2])))
    parent: Cid | None = None
    for number in range(2000):
        parent = blocks.put({**value, "parent": parent, "fork_at": 0 if parent else None, "title": f"n {number}"})
    assert parent is not None
    blocks.reads = 0
    page = look(blocks, parent)
    assert "more ancestors than are shown" in page.text
    assert blocks.reads <= 1 + 100 + MOST_ANCESTORS + 2 * NEAR + 1
    assert page.text.count("(this one)") == 1


def test_a_title_that_is_markup(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    for target in (
        "/",
        f"/ipfs/{world.roots['hostile']}",
        f"/diff?a={world.roots['hostile']}&b={world.roots['short']}",
    ):
        page = browse(world.app(), target)
        assert HOSTILE_TITLE.replace("\u202e", "\ufffd") in page.text
        assert "\u202e" not in page.body.decode()
        assert "script" not in {tag for tag, _ in page.tags}


class Liar:
    """A tokenizer whose words are worse than anything a model has."""

    def decode(self, tokens: Sequence[int]) -> str:
        return "</div><script>\x00\x1b[31m\ud800\u202e" + "y" * 20_000 * len(tokens)


def test_words_of_a_tokenizer_are_foreign_too(world: World) -> None:
    root = world.put("talk", world.put_blocks(tokens(64 * BLOCK_SIZE)))
    app = world.app(Lookups(text=lambda _: Liar()))
    for path in ("", "/segments/0", "/segments/0/links/1/to"):
        page = browse(app, f"/ipfs/{root}{path}")
        assert page.status == 200
        assert len(page.body) < MOST_BYTES
        assert "script" not in {tag for tag, _ in page.tags}
        assert not {*"\x00\x1b\u202e"} & {*page.body.decode()}


def block_of(world: World, app: Starlette, name: str) -> Page:
    return browse(app, f"/ipfs/{world.roots[name]}/segments/0/links/0/to")


def test_leaves_that_are_not_what_the_model_says_make_no_map(world: World) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("nothing was to be measured")

    chain = world.put_blocks(tokens(BLOCK_SIZE))
    world.put("sound", chain)
    slots = {name: getattr(MODEL, name) for name in MODEL.__slots__}
    for number, change in enumerate(
        ({"num_kv_heads": 4}, {"layers_per_leaf": 12}, {"head_dim": 4096, "num_kv_heads": 4096})
    ):
        model = other_model(**{**slots, **change})
        world.put(f"{number}", world.put_blocks(tokens(BLOCK_SIZE), model=model), model=model)
        page = block_of(world, world.app(Lookups(norms=fail)), f"{number}")  # type: ignore[arg-type]
        assert "not all leaves are here with the size that the model says" in page.text
    assert "Root mean square" in block_of(world, world.app(), "sound").text


def test_a_block_is_measured_once_and_a_failure_is_not_remembered(world: World) -> None:
    root = world.put("talk", world.put_blocks(tokens(2 * BLOCK_SIZE)))
    measured = []

    def norms(model: Model, leaves: Sequence[Buffer]) -> list[list[list[float]]]:
        measured.append(len(leaves))
        if len(measured) == 1:
            raise MalformedNode("not this time")
        return block_norms(model, leaves)

    app = world.app(Lookups(norms=norms))
    assert "There is no map: a leaf is damaged" in block_of(world, app, "talk").text
    assert "Root mean square" in block_of(world, app, "talk").text
    assert "Root mean square" in block_of(world, app, "talk").text
    assert measured == [2, 2]
    assert "Root mean square" in browse(app, f"/ipfs/{root}/segments/0/links/1/to").text
    assert measured == [2, 2, 2]


def test_what_was_lost_is_said_where_it_would_be(world: World) -> None:
    chain = world.put_blocks(tokens(4 * BLOCK_SIZE))
    root = world.put("talk", chain)
    app = world.app()
    sound = browse(app, f"/ipfs/{root}")
    assert "The text ends here" not in sound.text
    lost = [cid for cid in closure(world.store, root) if cid.codec == "raw"]
    world.store.delete_many(lost)
    assert "There is no map" in block_of(world, app, "talk").text
    assert "not here" in block_of(world, app, "talk").text
    world.store.delete_many([chain[2]])
    cut = browse(app, f"/ipfs/{root}")
    assert "The text ends here: block 2 is not here." in cut.text
    assert "not here" in browse(app, f"/ipfs/{root}/segments/0").text
    world.store.delete_many([world.store.put_node(MODEL)])
    assert browse(app, f"/ipfs/{root}").status == 200
    assert "the model's identity is not here" in block_of(world, world.app(), "talk").text


def test_a_file_that_was_changed_spoils_no_page_of_something_else(world: World, tmp_path: Path) -> None:
    root = world.put("talk", world.put_blocks(tokens(4 * BLOCK_SIZE)))
    other = world.put("other", world.put_blocks(tokens(2 * BLOCK_SIZE)))
    path = tmp_path / "other.car"
    with path.open("wb") as file:
        write_car(file, [other], ((cid, world.store.get(cid)) for cid in closure(world.store, other)))
    world.index.withdraw(other, closure(world.store, other))
    with CarContent(path) as content:
        both = Several([Published(world.store, world.index), content])
        app = build_app(both, Pages(both))
        addresses = "/", f"/ipfs/{root}", "/diff", f"/diff?a={root}&b={other}"
        assert [browse(app, address).status for address in addresses] == [200] * 4
        path.write_bytes(bytes(path.stat().st_size))
        app = build_app(both, Pages(both))  # and nothing is remembered
        assert [browse(app, address).status for address in addresses] == [200, 200, 200, 404]
        assert browse(app, f"/ipfs/{other}").status == 500
