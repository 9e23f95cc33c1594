"""Pages of sealed conversations: what everybody may know, and nothing that leads to a refusal."""

from dataclasses import replace

import pytest
from starlette.applications import Starlette

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.gateway import build_app
from cyberkv.cybergraph.gateway.pages import Pages
from cyberkv.cybergraph.gateway.pages import sealed as sealed_module
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.wording import size
from tests.wire.explorer import Page, browse
from tests.wire.sealed_home import ISSUER, MORE, Home, SealedTalk


@pytest.fixture
def home(there: Index) -> Home:
    return Home(MemoryStore(), there)


@pytest.fixture
def talk(home: Home) -> SealedTalk:
    return home.seal("a", readers=MORE)


def shop(home: Home, *, guarded: bool = False) -> Starlette:
    door = home.door("http://127.0.0.1:5001") if guarded else None
    return build_app(home.content(), Pages(home.content() if door is None else door.outside), door)


def page_of(talk: SealedTalk, *, guarded: bool = False) -> Page:
    return browse(shop(talk.home, guarded=guarded), f"/ipfs/{talk.root}")


def followed(talk: SealedTalk, page: Page, *, guarded: bool) -> set[int]:
    app = shop(talk.home, guarded=guarded)
    return {browse(app, link).status for link in page.links if link.startswith("/")}


def test_the_first_page_calls_it_by_what_it_is(home: Home, talk: SealedTalk) -> None:
    shown = home.show("b")
    page = browse(shop(home), "/")
    assert page.text.count("sealed conversation") == 1
    assert "dag-cbor block" not in page.text
    assert {f"/ipfs/{talk.root}", f"/ipfs/{shown}"} <= {*page.links}
    assert "2 roots" in page.text


def test_its_page_says_what_everybody_may_know(talk: SealedTalk) -> None:
    page = page_of(talk)
    pinned = [cid for cid in talk.withheld() if cid.codec == "raw"]
    ciphertext = sum(talk.home.store.size_bytes(cid) or 0 for cid in pinned)
    for words in (
        "Sealed conversation", "at most 3 by key", "Epoch 1", ISSUER.public().signing.hex(), size(ciphertext),
        f"in {len(pinned)} leaves and pages", f"cyberkv fetch {talk.root} --from http://127.0.0.1:5001",
    ):  # fmt: skip
        assert words in page.text
    assert "at least" not in page.text
    assert f"/ipfs/{talk.root}?format=car" in page.links
    assert followed(talk, page, guarded=False) == {200}
    grant = browse(shop(talk.home), f"/ipfs/{talk.root}/grant")
    assert "cyberkv/grant" in grant.text


def test_behind_a_door_nothing_on_it_leads_to_a_refusal(talk: SealedTalk) -> None:
    page = page_of(talk, guarded=True)
    assert "not shown here" in page.text
    assert "at most 3 by key" in page.text
    assert not [link for link in page.links if "format=car" in link and link.startswith("/")]
    assert followed(talk, page, guarded=True) == {200}


def test_only_so_much_is_counted(talk: SealedTalk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_module, "MOST_COUNTED", 5)
    assert "at least" in page_of(talk).text


def test_a_grant_that_was_changed_or_belongs_to_another_says_nothing(home: Home, talk: SealedTalk) -> None:
    other = home.seal("b")
    forged = home.store.put_node(replace(talk.grant, issuer=other.grant.issuer, signature=bytes(64)))
    for grant in (other.report.grant, forged):
        root = home.store.put_node(replace(talk.sealed, grant=grant))
        home.index.publish(root, closure(home.store, root))
        page = browse(shop(home), f"/ipfs/{root}")
        assert "Its grant cannot be used" in page.text
        assert "by key" not in page.text
        assert ISSUER.public().signing.hex() not in page.text
