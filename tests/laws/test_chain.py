"""Laws of conversations at every length around the pages' edges."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.limits import MAX_SEGMENT_LINKS
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Segment, Tail
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import make_blocks, make_conversation, make_model

MODEL = make_model().cid()
MOST = 4 * MAX_SEGMENT_LINKS + 1
LENGTHS = st.integers(0, MOST) | st.sampled_from(
    [page * MAX_SEGMENT_LINKS + step for page in range(5) for step in (-1, 0, 1) if page or step >= 0]
)

STORE = MemoryStore()
BLOCKS = make_blocks(STORE, MODEL, range(MOST), block_size=1, leaves=1)
"""One token a block: only the page table is under test."""


def build(store: MemoryStore, length: int) -> Cid:
    return chain.build_root(
        store, model=MODEL, block_size=1, blocks=BLOCKS[:length], tail=EMPTY_TAIL, payload_bytes=length
    )


@given(length=LENGTHS)
def test_pages_hold_the_blocks_in_order(length: int) -> None:
    root = chain.load_root(STORE, build(STORE, length))
    assert list(chain.block_cids(STORE, root)) == BLOCKS[:length]
    pages = [Segment.decode(STORE.get(cid)) for cid in root.segments]
    assert [page.start for page in pages] == list(range(0, length, MAX_SEGMENT_LINKS))
    assert [len(page.links) for page in pages[:-1]] == [MAX_SEGMENT_LINKS] * (len(pages) - 1)
    links = [link for page in pages for link in page.links]
    assert [link.to for link in links] == BLOCKS[:length]
    assert [link.from_ for link in links] == [None, *BLOCKS][:length]
    assert [link.position_start for link in links] == list(range(length))


@given(a=LENGTHS, b=LENGTHS)
def test_full_pages_are_shared_and_no_others(a: int, b: int) -> None:
    pages = [chain.load_root(STORE, build(STORE, length)).segments for length in (a, b)]
    full = min(a, b) // MAX_SEGMENT_LINKS
    assert pages[0][:full] == pages[1][:full]
    if a != b:
        assert len(set(pages[0]) & set(pages[1])) == full


@given(length=LENGTHS)
@settings(max_examples=20)
def test_a_root_depends_on_its_contents_alone(length: int) -> None:
    assert build(MemoryStore(), length) == build(STORE, length)
    if length:
        assert build(STORE, length - 1) != build(STORE, length)


TOKENS = st.lists(st.integers(0, 2), max_size=14)


@given(a=TOKENS, b=TOKENS, block_size=st.integers(1, 4))
def test_common_prefixes_agree_with_lists(a: list[int], b: list[int], block_size: int) -> None:
    store = MemoryStore()
    roots = [chain.load_root(store, make_conversation(store, tokens, block_size=block_size)) for tokens in (a, b)]
    tokens = next((at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    common = chain.common_prefix(store, roots[0], roots[1])
    assert (common.common_tokens, common.common_blocks) == (tokens, tokens // block_size)
    assert chain.common_prefix(store, roots[1], roots[0]) == common


@given(
    tokens=st.lists(st.integers(0, 9), max_size=20), block_size=st.integers(1, 5), data=st.data(),
    others=st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=2),
)  # fmt: skip
def test_fetching_what_is_missing_until_nothing_is_brings_exactly_the_closure(
    tokens: list[int], block_size: int, data: st.DataObject, others: list[list[int]]
) -> None:
    source = MemoryStore()
    root = make_conversation(source, tokens, block_size=block_size)
    for other in others:
        make_conversation(source, other, block_size=block_size)
    closure = list(chain.closure(source, root))
    had = data.draw(st.lists(st.sampled_from(closure), unique=True))
    here = MemoryStore()
    here.put_many((cid, source.get(cid)) for cid in had)
    fetched: list[Cid] = []
    while wanted := chain.missing(here, root):
        here.put_many((cid, source.get(cid)) for cid in wanted)
        fetched += wanted
    assert len(fetched) == len(set(fetched))
    assert set(fetched) == set(closure) - set(had)
    assert set(here.cids()) == set(closure)
    assert chain.tokens(here, chain.load_root(here, root)) == tokens


@given(data=st.data(), blocks=st.integers(0, 6), leaves=st.integers(1, 3))
def test_the_usable_prefix_is_what_every_group_has(data: st.DataObject, blocks: int, leaves: int) -> None:
    store = MemoryStore()
    cids = make_blocks(store, MODEL, range(blocks), block_size=1, leaves=leaves)
    rows = list(chain.walk(store, chain.load_root(store, chain.build_root(
        store, model=MODEL, block_size=1, blocks=cids, tail=EMPTY_TAIL, payload_bytes=0
    ))))  # fmt: skip
    parts = [{step.cid, *step.block.kv} for step in rows]
    everything = sorted(cid for part in parts for cid in part)
    gone = set(data.draw(st.lists(st.sampled_from(everything), max_size=3))) if everything else set()
    store.delete_many(gone)
    expected = next((index for index, part in enumerate(parts) if part & gone), blocks)
    assert chain.usable_blocks(store, cids) == expected


@given(prefilled=st.integers(0, 3), rows=st.booleans(), length=st.integers(0, 3))
def test_tails_come_back(prefilled: int, rows: bool, length: int) -> None:
    kv = (Cid.of(b"rows", "raw", "blake3"),) if rows and length else None
    tail = Tail(tuple(range(length)), min(prefilled, length), "domain" if kv else None, kv)
    store = MemoryStore()
    root = chain.build_root(store, model=MODEL, block_size=4, blocks=[], tail=tail, payload_bytes=9)
    loaded = chain.load_root(store, root)
    assert (loaded.tail, loaded.length, loaded.bytes) == (tail, length, 9)
    assert chain.missing(store, root) == [MODEL, *(kv or ())]
