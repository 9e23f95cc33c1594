"""Pages of signed conversations: who signed, on the first page, on the conversation's own, and on the receipt's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.receipt import make_receipt
from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.gateway.pages import sources as sources_module
from cyberkv.cybergraph.nodes import Receipt
from tests.wire.explorer import World, browse, make_world

ALICE, EVE = Identity(bytes(32)), Identity(bytes([1]) * 32)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.index.close()


def sign(world: World, name: str, signer: Identity = ALICE) -> Receipt:
    receipt = make_receipt(signer, load_root(world.store, world.roots[name]), "cyberkv 1.2.3", "a domain")
    return publish(world, receipt)


def publish(world: World, receipt: Receipt) -> Receipt:
    root = world.store.put_node(receipt)
    world.index.publish(root, closure(world.store, root))
    return receipt


def test_a_signed_conversation_says_by_whom(world: World) -> None:
    key = ALICE.public().signing.hex()
    assert "nobody: not signed" in browse(world.app(), f"/ipfs/{world.roots['harbour']}").text
    receipt = sign(world, "harbour")
    page = browse(world.app(), f"/ipfs/{world.roots['harbour']}")
    assert key in page.body.decode()
    assert f"/ipfs/{receipt.cid()}" in page.links
    assert "nobody: not signed" not in page.text
    assert "nobody: not signed" in browse(world.app(), f"/ipfs/{world.roots['grown']}").text


def test_the_command_to_fetch_names_what_carries_the_signature(world: World) -> None:
    root, receipt = world.roots["harbour"], sign(world, "harbour")
    for shown in (root, receipt.cid()):
        text = browse(world.app(), f"/ipfs/{shown}").text
        assert f"cyberkv fetch {receipt.cid()} --from http://127.0.0.1:5001" in text
        assert f"cyberkv fetch {root}" not in text
    unsigned = world.roots["grown"]
    assert f"cyberkv fetch {unsigned} --from" in browse(world.app(), f"/ipfs/{unsigned}").text


def test_the_first_page_counts_conversations_and_not_receipts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("harbour", "grown"):
        sign(world, name)
    sign(world, "harbour", EVE)
    assert len(world.content().roots()) == 10
    assert "7 roots" in browse(world.app(), "/").text
    monkeypatch.setattr(sources_module, "MOST_FOLDED", 0)
    assert "10 roots" in browse(world.app(), "/").text


def test_the_first_page_has_it_once_and_says_that_it_is_signed(world: World) -> None:
    before = browse(world.app(), "/")
    assert "signed" not in before.text
    receipt = sign(world, "harbour")
    after = browse(world.app(), "/")
    assert after.text.count("signed") == 1
    assert f"/ipfs/{receipt.cid()}" not in after.links
    assert after.links.count(f"/ipfs/{world.roots['harbour']}") == before.links.count(f"/ipfs/{world.roots['harbour']}")


def test_a_receipt_has_a_page_that_leads_to_the_conversation(world: World) -> None:
    receipt = sign(world, "harbour")
    page = browse(world.app(), f"/ipfs/{receipt.cid()}")
    for words in (ALICE.public().signing.hex(), "cyberkv 1.2.3", "a domain", "not that it is right"):
        assert words in page.text
    assert f"/ipfs/{world.roots['harbour']}" in page.links
    assert "two books" in browse(world.app(), f"/ipfs/{receipt.cid()}/root").text


def test_a_forged_receipt_is_shown_as_one_and_signs_nothing(world: World) -> None:
    forged = publish(world, replace(sign(world, "grown"), producer=EVE.public().signing))
    page = browse(world.app(), f"/ipfs/{forged.cid()}")
    assert "does not hold" in page.text
    assert "not that it is right" not in page.text
    shown = browse(world.app(), f"/ipfs/{world.roots['grown']}").body.decode()
    assert ALICE.public().signing.hex() in shown
    assert EVE.public().signing.hex() not in shown


def test_a_receipt_of_what_is_not_public_shows_nothing_of_it(world: World) -> None:
    secret = make_receipt(ALICE, load_root(world.store, world.roots["secret"]), "cyberkv", None)
    world.index.publish(world.store.put_node(secret), ())
    for url in ("/", f"/ipfs/{secret.cid()}"):
        assert "Nobody may see this" not in browse(world.app(), url).body.decode()


def test_conversations_are_compared_by_their_receipts(world: World) -> None:
    harbour, grown = sign(world, "harbour"), sign(world, "grown")
    names = {"harbour": harbour, "grown": grown}
    expected = browse(world.app(), f"/diff?a={world.roots['harbour']}&b={world.roots['grown']}").text
    for a in (names["harbour"].cid(), world.roots["harbour"]):
        for b in (names["grown"].cid(), world.roots["grown"]):
            assert "Where they part" in browse(world.app(), f"/diff?a={a}&b={b}").text
    shown = browse(world.app(), f"/diff?a={harbour.cid()}&b={grown.cid()}")
    assert f"/ipfs/{world.roots['harbour']}" in shown.links
    assert "Common blocks" in expected
    assert "Common blocks" in shown.text


def test_what_a_receipt_cannot_lead_to_is_said(world: World) -> None:
    grown = world.roots["grown"]
    forged = publish(world, replace(sign(world, "grown"), producer=EVE.public().signing))
    secret = make_receipt(ALICE, load_root(world.store, world.roots["secret"]), "cyberkv", None)
    world.index.publish(world.store.put_node(secret), ())
    for a, words in (
        (forged.cid(), "signature does not hold"),
        (secret.cid(), "is not served here"),
        (load_root(world.store, grown).model, "not the CID of a conversation"),
        ("nonsense", "not the CID of a conversation"),
    ):
        page = browse(world.app(), f"/diff?a={a}&b={grown}")
        assert words in page.text
        assert "Common blocks" not in page.text


def test_the_receipt_before_is_a_link_where_it_is_here(world: World) -> None:
    first = sign(world, "harbour")
    second = publish(
        world, make_receipt(ALICE, load_root(world.store, world.roots["grown"]), "cyberkv", None, first.cid())
    )
    assert f"/ipfs/{first.cid()}" in browse(world.app(), f"/ipfs/{second.cid()}").links
    lost = publish(
        world,
        make_receipt(ALICE, load_root(world.store, world.roots["grown"]), "cyberkv", None, world.roots["secret"]),
    )
    page = browse(world.app(), f"/ipfs/{lost.cid()}")
    assert "not here" in page.text
    assert f"/ipfs/{world.roots['secret']}" not in page.links
