"""What somebody without a key sees of a sealed publication: every byte that left, every line that was asked."""

import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import ContentKey, Identity, open_grant
from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.chain import closure, load_root, walk
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import encode_tokens
from cyberkv.cybergraph.gateway import Published as Shown
from cyberkv.cybergraph.gateway import build_app
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Grant, PinSet, Sealed, decode_node
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore, Store
from cyberkv.cybergraph.transfer.fetch_sealed import fetch_sealed
from cyberkv.cybergraph.transfer.sealed import publish_sealed
from tests.access.sealed import ISSUER, KEY, READER, Published, publish
from tests.wire.conftest import CALM, running
from tests.wire.liar import Exchange, lying
from tests.wire.synthetic import BLOCK_SIZE, contents, conversation, record

TITLE = "a title that nobody may see"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "index") as opened:
        yield opened


def traces(home: Store, root: Cid, reader: Identity) -> dict[str, bytes]:
    """Whatever would tell about the conversation or its reader: names, hashes, text, keys."""
    whole = load_root(home, root)
    steps = list(walk(home, whole))
    found = {"title": TITLE.encode(), "host": socket.gethostname().encode(), "content key": KEY.reveal()}
    for number, (cid, data) in enumerate(contents(home, root).items()):
        found |= {
            f"cid {number}": cid, f"digest {number}": cid.digest, f"text of cid {number}": str(cid).encode()[10:],
            f"hex {number}": cid.digest.hex().encode(), f"bytes {number}": data[8:40],
        }  # fmt: skip
    for step in steps:
        found[f"tokens {step.index}"] = encode_tokens(step.block.tokens)
    tokens = [token for step in steps for token in step.block.tokens]
    found |= {f"prefix key {n}": bytes(key) for n, key in enumerate(prefix_keys(whole.model, tokens, BLOCK_SIZE))}
    public = reader.public(pq=True)
    assert public.pq is not None
    found |= {
        "signing key": public.signing,
        "sealing key": public.sealing,
        "ring key": public.ring,
        "pq": public.pq[:64],
    }
    found |= {"key as text": str(public).encode()[4:60], "fingerprint": public.fingerprint.encode()}
    return {name: trace for name, trace in found.items() if len(trace) > 3}


def test_neither_what_left_nor_what_was_asked_has_a_trace(index: Index, tmp_path: Path) -> None:
    home, root = conversation(blocks=270, tail_tokens=3, seed=TITLE)
    state = Lineage.begin("talk", ISSUER.public().signing, "2026-01-01T00:00:00Z", alg=1, kem="x25519")
    state = replace(state.with_reader("a reader's name", READER.public()), key=KEY.reveal())
    _, report = publish_sealed(home, index, root, state, ISSUER)
    left = {cid: home.get(cid) for cid in home.cids() if index.is_public(cid)}
    asked: list[str] = []

    def behave(talk: Exchange) -> None:
        asked.append(talk.target)
        talk.honest()

    theirs = MemoryStore()
    with (
        lying(left, behave) as server,
        HttpPeer(server.url, patience=CALM) as peer,
        Index(tmp_path / "i") as their_index,
    ):
        fetch_sealed(theirs, their_index, report.root, [peer], lambda _, grant: open_grant(grant, READER))
    assert contents(theirs, root) == contents(home, root)

    seen = b"".join([*left, *left.values()])
    lines = "\n".join(asked).encode()
    for name, trace in traces(home, root, READER).items():
        assert trace not in seen, name
        assert trace not in lines, name
    assert {line.split("/")[2].split("?")[0] for line in asked} <= {str(cid) for cid in report.cids}
    public_bytes = b"".join([*contents(home, root), *contents(home, root).values()])  # control: they are found there
    missed = {name for name, trace in traces(home, root, READER).items() if trace not in public_bytes}
    assert not any(name.split()[0] in ("title", "cid", "digest", "bytes", "tokens") for name in missed)


def test_the_same_over_our_own_gateway(index: Index, tmp_path: Path) -> None:
    """It gives what was sealed, and of the rest not even that it is there."""
    home, root = conversation(blocks=20, tail_tokens=2, seed=TITLE)
    state = Lineage.begin("talk", ISSUER.public().signing, "2026-01-01T00:00:00Z", alg=1, kem="x25519")
    _, report = publish_sealed(home, index, root, state, ISSUER)
    with running(build_app(Shown(home, index))) as served, HttpPeer(served.url, patience=CALM) as stranger:
        got = dict(stranger.get_dag(report.root))
        assert set(got) == set(report.cids)
        seen = b"".join([*got, *got.values()])
        assert not [name for name, trace in traces(home, root, READER).items() if trace in seen]
        for cid in closure(home, root):
            with pytest.raises(KeyError):
                list(stranger.get_many([cid]))


def shape(published: Published) -> tuple[Counter[int], list[int]]:
    """All that an outsider learns, given that ciphertext tells nothing: sizes, and how many links nodes have."""
    store = published.store
    nodes = [decode_node(store.get(cid)) for cid in store.cids() if cid.codec == "dag-cbor"]
    counts = sorted(len(node.links) for node in nodes if isinstance(node, PinSet))
    return Counter(len(store.get(cid)) for cid in store.cids()), counts


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 16] for at in range(4, len(data) - 16, 16)]


def test_two_texts_of_one_length_look_alike() -> None:
    """Other rows, another title, another way to divide the same tokens into a last block and a tail."""
    first = publish(*conversation(blocks=12, tail_tokens=3, seed="one"))
    second = publish(*conversation(blocks=12, tail_tokens=1, seed="two"))
    assert shape(first) == shape(second)
    assert not {*first.store.cids()} & {*second.store.cids()} - {first.sealed.manifest}
    longer = publish(*conversation(blocks=13, tail_tokens=3, seed="one"))
    assert shape(longer) != shape(first)
    titled = publish(*conversation(blocks=12, tail_tokens=3, seed="a much longer title than the other one"))
    ours, theirs = shape(first)[0], shape(titled)[0]
    [before], [after] = ours - theirs, theirs - ours
    assert before < after <= before * 1.125  # of the first page, rounded up


def test_the_order_of_what_is_pinned_tells_nothing() -> None:
    published = publish(*conversation(blocks=40))
    for cid in published.store.cids():
        if cid.codec == "dag-cbor" and isinstance(node := decode_node(published.store.get(cid)), PinSet):
            assert list(node.links) == sorted(node.links)


def test_readers_are_not_told_apart_or_counted() -> None:
    """Three readers or two beside the issuer: one size. Nothing in a grant repeats from one to the next."""
    readers = [Identity(bytes([50 + number]) * 32).public() for number in range(3)]
    home, root = conversation(blocks=2)
    grants = [publish(home, root, readers=tuple(readers[:count])).grant for count in (2, 3, 3)]
    assert len({len(grant.encode()) for grant in grants}) == 1
    assert not set(grants[1].wraps) & set(grants[2].wraps)


def test_what_is_public_of_two_lineages_has_nothing_in_common_but_the_signer() -> None:
    home, root = conversation(blocks=20)
    first, second = publish(home, root), publish(home, root, key=ContentKey(bytes([7]) * 32))
    assert not {*first.store.cids()} & {*second.store.cids()}
    chunks = [
        {chunk for cid in each.store.cids() for chunk in _pieces(each.store.get(cid))} for each in (first, second)
    ]
    same = chunks[0] & chunks[1]
    fixed = b"".join(first.store.get(cid) for cid in first.store.cids() if cid.codec == "dag-cbor")
    assert all(chunk in fixed for chunk in same)


def test_nothing_sealed_names_time_or_place(index: Index) -> None:
    """No field of a published node has room for an address, a path or a time."""
    names = {name for kind in (Sealed, Grant, PinSet) for name in kind.KINDS}
    assert names == {
        "alg", "lineage", "epoch", "commitment", "grant", "manifest", "pinset", "issuer", "root", "prev", "access",
        "ring", "kem", "wraps", "signature", "links",
    }  # fmt: skip
    home = MemoryStore()
    root = record(home, blocks=2, created="2026-01-01T10:11:12Z")
    _, report = publish_sealed(
        home, index, root, Lineage.begin("a name", ISSUER.public().signing, "", alg=1, kem="x25519"), ISSUER
    )
    left = b"".join(home.get(cid) for cid in report.cids)
    assert b"2026" not in left
    assert b"a name" not in left
