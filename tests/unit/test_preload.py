"""Model cards: only conversations of the loaded model, only what hashes to its CID, only what the signer signed."""

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.errors import Corrupt, DigestMismatch, IdentityMismatch
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import ModelCard, Signature
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import check_signature, plan_publish, preload, publish_car
from tests.wire.synthetic import MODEL, conversation, other_model, record

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def signed(card: ModelCard) -> ModelCard:
    blank = replace(card, signature=None)
    return replace(blank, signature=Signature(KEY.public_key().public_bytes_raw(), KEY.sign(blank.encode())))


def card_for(*preload: bytes) -> ModelCard:
    return signed(ModelCard(model=MODEL.cid(), name="tiny", licence="Apache-2.0", preload=preload, signature=None))  # type: ignore[arg-type]


@pytest.fixture
def car(tmp_path: Path, index: Index) -> tuple[Path, MemoryStore, ModelCard]:
    store, root = conversation(blocks=3)
    path = tmp_path / "card.car"
    publish_car(store, plan_publish(store, index, root, "public"), path)
    return path, store, card_for(root)


def test_preload_brings_every_conversation_of_the_card(car: tuple[Path, MemoryStore, ModelCard], index: Index) -> None:
    path, theirs, card = car
    with MemoryStore() as ours, CarFilePeer(path) as peer:
        reports = preload(ours, index, card, MODEL, [peer])
        assert [report.root for report in reports] == list(card.preload)
        assert set(ours.cids()) == set(closure(theirs, *card.preload))
    assert check_signature(card) == KEY.public_key().public_bytes_raw()
    assert check_signature(replace(card, signature=None)) is None


def test_a_card_of_another_model_is_refused(car: tuple[Path, MemoryStore, ModelCard], index: Index) -> None:
    path, _, card = car
    with MemoryStore() as ours, CarFilePeer(path) as peer, pytest.raises(IdentityMismatch, match="card is for model"):
        preload(ours, index, card, other_model(weights="blake3:11"), [peer])


def test_a_listed_conversation_of_another_model_is_refused_by_axis(index: Index, tmp_path: Path) -> None:
    store = MemoryStore()
    root = record(store, model=other_model(weights="blake3:11"))
    publish_car(store, plan_publish(store, index, root, "public"), tmp_path / "other.car")
    with MemoryStore() as ours, CarFilePeer(tmp_path / "other.car") as peer:
        with pytest.raises(IdentityMismatch) as caught:
            preload(ours, index, card_for(root), MODEL, [peer])
        assert caught.value.data["field"] == "weights"
        assert list(ours.cids()) == []


def test_a_changed_card_or_block_is_refused(car: tuple[Path, MemoryStore, ModelCard], index: Index) -> None:
    path, _, card = car
    with MemoryStore() as ours, CarFilePeer(path) as peer, pytest.raises(Corrupt, match="signature"):
        preload(ours, index, replace(card, name="other"), MODEL, [peer])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with MemoryStore() as ours, CarFilePeer(path) as peer:
        with pytest.raises(DigestMismatch):
            preload(ours, index, card, MODEL, [peer])
        assert not ours.has(card.preload[0])
