"""Model cards: who signed, only conversations of the loaded model, only what hashes to its CID, and all or nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.ed25519 import PUBLIC_BYTES, SIGNATURE_BYTES
from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BadKey,
    BadSignature,
    CyberKVError,
    DigestMismatch,
    IdentityMismatch,
    Refused,
    Untrusted,
)
from cyberkv.cybergraph.index import Index, signed_domain
from cyberkv.cybergraph.nodes import ModelCard, Signature
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import FetchReport, check_signature, plan_publish, preload
from cyberkv.cybergraph.transfer.card import CardPlan, publish_card, sign_card
from fixtures.golden import CONVERSATION, WHOLE_CARD
from fixtures.golden import MODEL as GOLDEN_MODEL
from fixtures.make import FOLDER
from tests.wire.synthetic import MODEL, other_model, record

KEY = Identity(bytes(range(32)))
SIGNER = KEY.public().signing


def card_for(*roots: Cid, name: str = "tiny") -> ModelCard:
    return sign_card(ModelCard(MODEL.cid(), name, "Apache-2.0", roots, None), KEY)


def write(store: MemoryStore, index: Index, path: Path, *roots: Cid, card: ModelCard | None = None) -> ModelCard:
    card = card or card_for(*roots)
    plans = tuple(plan_publish(store, index, root, "public") for root in roots)
    assert publish_card(store, CardPlan(card, MODEL, plans), path) == path.stat().st_size
    return card


@pytest.fixture
def theirs() -> MemoryStore:
    return MemoryStore()


Load = Callable[..., list[FetchReport]]


@pytest.fixture
def ours() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def load(ours: MemoryStore, index: Index) -> Load:
    """Preload a card from files into `ours`."""

    def run(card: ModelCard, *paths: Path, **options: object) -> list[FetchReport]:
        peers = [CarFilePeer(path) for path in paths]
        try:
            return preload(ours, index, card, MODEL, peers, **{"trusted": {SIGNER}} | options)  # type: ignore[arg-type]
        finally:
            for peer in peers:
                peer.close()

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiny.model"


def test_preload_brings_every_conversation_of_the_card(
    theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load
) -> None:
    roots = [record(theirs, blocks=3), record(theirs, blocks=2, seed="b")]
    card = write(theirs, index, file, *roots)
    reports = load(card, file)
    assert [report.root for report in reports] == roots
    assert set(ours.cids()) == {*closure(theirs, *roots), card.cid()}
    assert {entry.domain for entry in index.entries()} == {signed_domain(SIGNER)}
    assert [report.blocks_fetched for report in load(card, file)] == [0, 0], "what is here does not move again"


def test_the_file_holds_the_card_and_what_it_lists_once_each(theirs: MemoryStore, index: Index, file: Path) -> None:
    roots = [record(theirs, blocks=blocks) for blocks in (3, 4)]
    record(theirs, seed="another")
    card = write(theirs, index, file, *roots)
    with CarFilePeer(file) as peer:
        assert peer.roots == (card.cid(),)
        held = [cid for cid, _ in peer.get_many([card.cid(), *closure(theirs, *roots)])]
    plan = CardPlan(card, MODEL, tuple(plan_publish(theirs, index, root, "public") for root in roots))
    assert len(plan.cids) == len(set(plan.cids)) == len(set(held))
    assert plan.cids[:2] == (card.cid(), MODEL.cid())


def test_a_card_may_list_nothing(theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load) -> None:
    card = write(theirs, index, file)
    assert load(card, file) == []
    assert list(ours.cids()) == [card.cid()]


def test_what_several_conversations_share_moves_once(
    theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load
) -> None:
    roots = [record(theirs, blocks=blocks, seed="a") for blocks in (3, 4)]
    reports = load(write(theirs, index, file, *roots), file)
    assert sum(report.blocks_fetched for report in reports) == len(set(ours.cids())) - 1
    assert reports[1].blocks_had == len({*closure(theirs, roots[0])} & {*closure(theirs, roots[1])}) > 3
    assert [report.blocks_total for report in reports] == [len(list(closure(theirs, root))) for root in roots]


def test_the_golden_file_is_loaded(ours: MemoryStore, index: Index) -> None:
    assert WHOLE_CARD.signature is not None
    signer = WHOLE_CARD.signature.signer
    with CarFilePeer(FOLDER / "golden.model") as peer:
        with pytest.raises(IdentityMismatch):
            preload(ours, index, WHOLE_CARD, MODEL, [peer], trusted={signer})
        [report] = preload(ours, index, WHOLE_CARD, GOLDEN_MODEL, [peer], trusted={signer})
    assert load_root(ours, report.root) == CONVERSATION
    assert report.blocks_fetched == report.blocks_total


def test_who_signed_decides(theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load) -> None:
    root = record(theirs)
    card = write(theirs, index, file, root)
    unsigned = replace(card, signature=None)
    assert check_signature(card) == SIGNER
    assert check_signature(unsigned) is None
    with pytest.raises(Untrusted, match="nobody signed") as caught:
        load(unsigned, file)
    assert caught.value.data["signers"] == []
    with pytest.raises(Untrusted, match=SIGNER.hex()) as caught:
        load(card, file, trusted={bytes(32)})
    assert caught.value.data["signers"] == [SIGNER.hex()]
    assert list(ours.cids()) == []
    load(unsigned, file, trusted=None)
    assert {entry.domain for entry in index.entries()} == {"unknown"}


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        (lambda card: replace(card, name="other"), BadSignature),
        (lambda card: replace(card, licence="none"), BadSignature),
        (lambda card: replace(card, preload=()), BadSignature),
        (lambda card: replace(card, signature=replace(card.signature, signer=Identity(bytes(32)).public().signing)),
         BadSignature),
        (lambda card: replace(card, signature=Signature(b"\x01" + bytes(PUBLIC_BYTES - 1),
                                                        b"\x01" + bytes(SIGNATURE_BYTES - 1))), BadKey),
    ],
    ids=["name", "licence", "list", "signer", "a key that signs everything"],
)  # fmt: skip
def test_a_changed_card_is_refused_whoever_is_trusted(
    theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load,
    forge: Callable[[ModelCard], ModelCard], error: type[CyberKVError],
) -> None:  # fmt: skip
    card = write(theirs, index, file, record(theirs))
    for trusted in ({SIGNER}, None):
        with pytest.raises(error):
            load(forge(card), file, trusted=trusted)
    assert list(ours.cids()) == []
    load(card, file)


def test_a_card_of_another_model_is_refused(theirs: MemoryStore, index: Index, file: Path, load: Load) -> None:
    card = sign_card(replace(card_for(), model=other_model(weights="blake3:11").cid()), KEY)
    write(theirs, index, file, card=card)
    with pytest.raises(IdentityMismatch, match="card is for model"):
        load(card, file)


def test_a_foreign_entry_is_refused_by_name_before_anything_moves(
    theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load
) -> None:
    sound, foreign = record(theirs), record(theirs, model=other_model(weights="blake3:11"))
    begun: list[Cid] = []
    with pytest.raises(IdentityMismatch, match=str(foreign)) as caught:
        load(write(theirs, index, file, sound, foreign), file, begin=lambda root, _: begun.append(root))
    assert (caught.value.data["field"], caught.value.data["cid"]) == ("weights", str(foreign))
    assert (list(ours.cids()), begun) == ([], [])


def test_an_approximate_entry_is_refused_by_name(
    theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load
) -> None:
    sound, spliced = record(theirs), record(theirs, approx="spliced")
    begun: list[Cid] = []
    with pytest.raises(Refused, match=str(spliced)):
        load(write(theirs, index, file, sound, spliced), file, begin=lambda root, _: begun.append(root))
    assert (list(ours.cids()), begun) == ([], [])
    load(write(theirs, index, file.with_name("sound.model"), sound), file, begin=lambda root, _: begun.append(root))
    assert begun == [sound]


def test_a_tampered_block_is_refused_by_name(
    theirs: MemoryStore, ours: MemoryStore, index: Index, file: Path, load: Load
) -> None:
    root = record(theirs, blocks=3)
    card = write(theirs, index, file, root)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DigestMismatch) as caught:
        load(card, file)
    assert Cid.parse(str(caught.value.data["cid"])) in closure(theirs, root)
    assert not ours.has(root)
    assert not ours.has(card.cid())
    data[-1] ^= 1
    file.write_bytes(data)
    load(card, file)
    assert ours.has(root)
