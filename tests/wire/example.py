"""A small graph with blocks of every codec, in a CAR file, and a server that shows it beside an empty home."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cyberkv.cybergraph.foreign import AnyCid, ForeignCid
from cyberkv.cybergraph.gateway import Published, Several, build_app
from cyberkv.cybergraph.gateway.carcontent import CarContent
from cyberkv.cybergraph.gateway.pages import Pages
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.ipld import write_value
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.asking import Answer, asking, foreign, write_any_car
from tests.wire.conftest import running

ABSENT = foreign("dag-cbor", b"nobody has this")
INLINE = ForeignCid(b"\x01\x55\x00\x05hello")

NAMES = ["leaf", "dag-cbor", "dag-json", "json", "cbor", "file"]
"""A block of each codec."""


def blocks() -> dict[str, tuple[AnyCid, bytes]]:
    """Name the blocks of the example: CID and bytes."""
    made: dict[str, tuple[AnyCid, bytes]] = {}

    def add(name: str, codec: str, data: bytes) -> AnyCid:
        made[name] = foreign(codec, data), data
        return made[name][0]

    leaf = add("leaf", "raw", bytes(range(100)))
    add("page", "raw", b"<!doctype html><script>alert(1)</script>")
    file = add("file", "dag-pb", b"\x0a\x04\x08\x02\x18\x00")
    add("json", "json", b'{ "any": "JSON" }')
    add("cbor", "cbor", bytes.fromhex("a2616201616102"))
    for codec in ("dag-cbor", "dag-json"):
        hello = add(f"{codec} end", codec, write_value(codec, {"hello": "this is not a link"}))
        middle = add(f"{codec} middle", codec, write_value(codec, {"bar": hello, "leaf": leaf}))
        add(codec, codec, write_value(codec, {
            "foo": {"link": middle, "deep": [0, {"x": leaf}]}, "list": [leaf, 7], "gone": ABSENT, "inline": INLINE,
            "file": file, "again": leaf, "": leaf, "a b": leaf, "\u0142?#": leaf, "%2C": leaf, "100": hello,
        }))  # fmt: skip
    return made


class Example:
    """The blocks by name and how to ask for them."""

    def __init__(self, url: str) -> None:
        made = blocks()
        self.cids = {name: cid for name, (cid, _) in made.items()}
        self.data = {name: data for name, (_, data) in made.items()}
        self.ask = asking(url)

    def get(self, name: str, after: str = "", method: str = "GET", **headers: str) -> Answer:
        """Ask for a block by name, or for what lies below it."""
        return self.ask(f"/ipfs/{self.cids[name]}{after}", method, **headers)


@contextmanager
def served_example(folder: Path) -> Iterator[Example]:
    """Serve the example, with pages, until the block ends."""
    made = blocks()
    write_any_car(folder / "example.car", made["dag-cbor"][0], made.values())
    with Index(folder / "index") as index, CarContent(folder / "example.car") as file:
        content = Several([Published(MemoryStore(), index), file])
        with running(build_app(content, Pages(content))) as served:
            yield Example(served.url)
