"""A small published world to look at, and a browser's requests without a browser."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from starlette.applications import Starlette
from starlette.types import Message

from cyberkv.cybergraph.chain import build_root, closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.pages import Lookups, Pages
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block, Model, Tail
from cyberkv.cybergraph.store import MemoryStore, Store
from cyberkv.runtime.norms import block_norms
from tests.wire.synthetic import other_model

BLOCK_SIZE = 16
LAYERS, LAYERS_PER_LEAF, KV_HEADS, HEAD_DIM = 12, 6, 3, 8
MODEL = other_model(
    num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, attention=("full",) * 9 + ("window:512",) * 3,
    block_size=BLOCK_SIZE, layers_per_leaf=LAYERS_PER_LEAF, weights="blake3:" + "5a" * 32, hidden_size=96,
)  # fmt: skip
TEXT = """\
The harbour master kept two books. In the first she wrote what came in: salt, rope, lamp oil, letters with the stamps of
towns that no longer had post offices. In the second she wrote what went out, and it was always shorter. Nobody asked
about the difference. Once a year the tide carried the pages of both books past the window, in order, and whoever stood
there could read that nothing had been lost, only moved."""
STORY = TEXT.split()
HOSTILE_TITLE = '<script>alert("1")</script> \u202egnp.exe & "quotes"'


class Storyteller:
    """A tokenizer of one word a token."""

    def decode(self, tokens: Sequence[int]) -> str:
        words = (STORY[token % len(STORY)] for token in tokens)
        return "".join(word + ("\n\n" if word.endswith("moved.") else " ") for word in words)


@dataclass
class World:
    """Published conversations by name, and what must not show."""

    store: Store
    index: Index
    roots: dict[str, Cid] = field(default_factory=dict)
    model: Cid = field(init=False)

    def put_blocks(self, tokens: Sequence[int], model: Model = MODEL, before: Sequence[Cid] = ()) -> list[Cid]:
        """Store the blocks of `tokens` behind others and give the whole chain."""
        cid = self.store.put_node(model)
        chain = list(before)
        for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
            window = tuple(tokens[start : start + BLOCK_SIZE])
            prev = chain[-1] if chain else None
            chain.append(self.store.put_node(Block(cid, prev, window, self.put_leaves(len(chain) % 7))))
        return chain

    def put_leaves(self, flavour: int, tokens: int = BLOCK_SIZE) -> tuple[Cid, ...]:
        """Leaves whose K and V grow with the layer, so that there is something to see."""
        cids = []
        for first in range(0, LAYERS, LAYERS_PER_LEAF):
            draw = np.random.default_rng((flavour, first))
            rows = draw.standard_normal((LAYERS_PER_LEAF, 2, tokens, KV_HEADS, HEAD_DIM), np.float32)
            rows *= (1 + first + np.arange(LAYERS_PER_LEAF, dtype=np.float32)).reshape(-1, 1, 1, 1, 1) ** 0.7
            rows[:, :, :, 1] *= 2
            data = rows.astype("<f4").tobytes()
            cids.append(Cid.of(data, "raw", "blake3"))
            self.store.put_many([(cids[-1], data)])
        return tuple(cids)

    def put(
        self, name: str, chain: Sequence[Cid], tail: Sequence[int] = (), *, title: str | None = None,
        model: Model = MODEL, parent: str = "", fork_at: int | None = None, day: int = 1, publish: bool = True,
    ) -> Cid:  # fmt: skip
        """Write a root, and publish it."""
        tokens = len(chain) * BLOCK_SIZE + len(tail)
        rows = Tail(tuple(tail), 0, "test" if tail else None, self.put_leaves(8, len(tail)) if tail else None)
        root = build_root(
            self.store, model=self.store.put_node(model), block_size=BLOCK_SIZE, blocks=chain, tail=rows,
            payload_bytes=tokens * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4, title=name if title is None else title,
            created=f"2026-03-{day:02}T09:{day:02}:00Z", parent=self.roots.get(parent), fork_at=fork_at,
        )  # fmt: skip
        self.roots[name] = root
        if publish:
            self.index.publish(root, closure(self.store, root))
        return root

    def content(self) -> Published:
        return Published(self.store, self.index)

    def app(self, lookups: Lookups | None = None) -> Starlette:
        """The application that ships, with pages; by default with a tokenizer and the norms of the runtime."""
        return build_app(self.content(), Pages(self.content(), lookups or LOOKUPS))


LOOKUPS = Lookups(text=lambda _: Storyteller(), norms=block_norms)


def tokens(count: int, seed: int = 0) -> list[int]:
    """Tokens of the story, from another word on for each seed."""
    return [(seed * 7 + at) % len(STORY) for at in range(count)]


def make_world(folder: Path, store: Store | None = None) -> World:
    """A conversation of two segments, what grew and forked from it, another model, a hostile title, a secret."""
    world = World(store if store is not None else MemoryStore(), Index(folder / "index"))
    base = world.put_blocks(tokens(300 * BLOCK_SIZE))
    world.model = world.store.put_node(MODEL)
    world.put("harbour", base, tokens(5, 3), title="The harbour master's two books", day=2)
    grown = world.put_blocks(tokens(20 * BLOCK_SIZE, 5), before=base)
    world.put("grown", grown, title="The harbour master's two books, continued", day=3)
    fork = world.put_blocks(tokens(40 * BLOCK_SIZE, 9), before=base[:200])
    world.put("fork", fork, parent="harbour", fork_at=200 * BLOCK_SIZE, title="What if nobody asked", day=4)
    again = world.put_blocks(tokens(8 * BLOCK_SIZE, 11), before=fork[:220])
    world.put("fork of the fork", again, parent="fork", fork_at=220 * BLOCK_SIZE, day=5)
    short = world.put_blocks(tokens(3 * BLOCK_SIZE, 2))
    world.put(
        "short",
        short,
        tokens(7),
        title="A short one: \u05e9\u05dc\u05d5\u05dd, \u0645\u0631\u062d\u0628\u0627, caf\u00e9",
        day=6,
    )
    other = other_model(
        **{**{k: getattr(MODEL, k) for k in MODEL.__slots__}, "weights": "blake3:" + "77" * 32, "norm_eps": "1e-06"}
    )
    world.put("other model", world.put_blocks(tokens(6 * BLOCK_SIZE), model=other), model=other, day=7)
    world.put("hostile", short[:1], title=HOSTILE_TITLE, day=8)
    secret = world.put_blocks(tokens(4 * BLOCK_SIZE, 4), before=base[:10])
    world.put("secret", secret, title="Nobody may see this", publish=False, day=9)
    return world


@dataclass
class Page:
    """An answer, and what a browser makes of it."""

    status: int
    headers: dict[str, str]
    body: bytes
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    """What there is to read, with a space at each tag."""

    @property
    def links(self) -> list[str]:
        return [attributes["href"] for tag, attributes in self.tags if tag == "a"]


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def browse(app: Starlette, target: str, method: str = "GET", **headers: str) -> Page:
    """Ask as a browser does."""
    path, _, query = target.partition("#")[0].partition("?")
    asked = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "host": "127.0.0.1:5001", **headers}
    scope = {
        "type": "http", "method": method, "path": unquote(path), "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 5001),
        "client": ("127.0.0.1", 5002),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in asked.items()],
    }  # fmt: skip
    page = Page(0, {}, b"")

    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not requests:
            await asyncio.Future()  # the browser stays
        return requests.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            page.status = message["status"]
            page.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        page.body += message.get("body", b"")

    asyncio.run(app(scope, receive, send))
    if page.headers.get("content-type", "").startswith("text/html"):
        reader = _Reader(page)
        reader.feed(page.body.decode())
        page.text = " ".join(" ".join(reader.words).split()).replace(" ,", ",").replace(" .", ".")
    return page
