"""A source is believed to have a conversation only while it shows it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.receipt import make_receipt
from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.chain import load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.peers import Patience, Peer, open_peer
from cyberkv.cybergraph.peers.probe import ANSWER_S, Probe
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.conftest import Served
from tests.wire.synthetic import contents, record

Publish = Callable[..., Served]


class Asked:
    """Opens sources, counted, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.now_s = 0.0
        self.probe = Probe(self.open, clock=lambda: self.now_s)

    def open(self, source: str, patience: Patience) -> Peer:
        self.opened.append(source)
        return open_peer(source, patience=patience)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_gateway_is_asked_for_the_root(asked: Asked, publish: Publish) -> None:
    store = MemoryStore()
    public, private = record(store, seed="public"), record(store, seed="private")
    served = publish(store, public)
    assert asked.probe(served.url, public)
    assert not asked.probe(served.url, private)
    assert [each.split("?")[0] for each in served.requests] == [f"/ipfs/{public}", f"/ipfs/{private}"]


def test_an_answer_counts_for_a_minute(asked: Asked, publish: Publish) -> None:
    store = MemoryStore()
    roots = [record(store, seed=seed) for seed in "abc"]
    served = publish(store, *roots[:2])
    for _ in range(3):
        assert [asked.probe(served.url, root) for root in roots] == [True, True, False]
    assert len(asked.opened) == 3
    asked.now_s = ANSWER_S
    assert asked.probe(served.url, roots[0])
    assert len(asked.opened) == 4


def test_one_that_does_not_answer_is_not_asked_for_each_root(asked: Asked) -> None:
    roots = [Cid.of(bytes([number]), "dag-cbor", "sha2-256") for number in range(5)]
    assert not any(asked.probe("http://127.0.0.1:1", root) for root in roots)
    assert len(asked.opened) == 1
    assert not asked.probe("http://127.0.0.1:2", roots[0])  # the control: another one is
    assert len(asked.opened) == 2


def test_a_file_has_what_it_names_while_it_is_whole(tmp_path: Path) -> None:
    store = MemoryStore()
    root, other = record(store, seed="a"), record(store, seed="b")
    path = tmp_path / "some.car"
    with path.open("wb") as out:
        write_car(out, [root], (contents(store, root) | contents(store, other)).items())
    whole = path.read_bytes()
    assert Asked().probe(str(path), root)
    assert not Asked().probe(str(path), other)  # it is in there, but who made the file did not mean all of it
    path.write_bytes(whole[:-1])
    assert not Asked().probe(str(path), root)
    path.write_bytes(b"")
    assert not Asked().probe(str(path), root)
    path.unlink()
    assert not Asked().probe(str(path), root)


def test_a_file_that_begins_with_a_receipt_has_what_that_signs(tmp_path: Path) -> None:
    store = MemoryStore()
    root, other = record(store, seed="a"), record(store, seed="b")
    receipt = make_receipt(Identity(bytes(32)), load_root(store, root), "cyberkv", None)
    path = tmp_path / "signed.car"
    with path.open("wb") as out:
        blocks = {receipt.cid(): receipt.encode()} | contents(store, root) | contents(store, other)
        write_car(out, [receipt.cid()], blocks.items())
    assert Asked().probe(str(path), root)
    assert not Asked().probe(str(path), other)
