"""Whose word a conversation stands on, at any length; and the private files that say so."""

import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.receipt import check_receipt, common_domain, make_receipt
from cyberkv.cybergraph.access.standing import carry_origin, keep_grounds, require_usable
from cyberkv.cybergraph.access.trust import MAX_WORDS, TrustFolder
from cyberkv.cybergraph.chain import build_root, closure, load_root, missing
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadKey, BadSignature, Corrupt, MalformedNode, Untrusted
from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, Index, IndexEntry, signed_domain
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block
from cyberkv.cybergraph.prefix import PrefixKey, prefix_key
from cyberkv.cybergraph.store import MemoryStore

MODEL = Cid.of(b"model", "dag-cbor", "sha2-256")
LEAF = Cid.of(b"leaf", "raw", "sha2-256")
ALICE, BOB = Identity(bytes(32)), Identity(bytes([1]) * 32)
KEYS = [each.public().signing for each in (ALICE, BOB)]


class Home:
    """A store, an index and a trust folder, with conversations of one token a block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.index = MemoryStore(), Index(folder / "index")
        self.trust = TrustFolder(folder / "trust")

    def blocks(self, tokens: str, domain: str, before: list[Cid] | None = None) -> list[Cid]:
        """Store and index a chain that goes on from another."""
        chain = list(before or [])
        key: PrefixKey | None = None
        for cid in chain:
            key = prefix_key(MODEL, key, Block.decode(self.store.get(cid)).tokens)
        for token in tokens:
            prev = chain[-1] if chain else None
            chain.append(self.store.put_node(Block(MODEL, prev, (ord(token),), (LEAF,))))
            key = prefix_key(MODEL, key, (ord(token),))
            self.index.add_blocks([IndexEntry(key, chain[-1], prev, MODEL, domain)])
        return chain

    def root(self, blocks: list[Cid], title: str = "") -> Cid:
        return build_root(
            self.store, model=MODEL, block_size=1, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=0, title=title
        )

    def usable(self, root: Cid) -> bool:
        try:
            require_usable(self.store, self.index, self.trust, root)
        except Untrusted:
            return False
        return True


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.index.close()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 600])
def test_what_goes_on_from_a_fetched_conversation_stands_on_its_signer(home: Home, length: int) -> None:
    fetched = home.blocks("f" * length, UNKNOWN_DOMAIN)
    root = home.root(fetched)
    home.trust.note(root, signers=KEYS[:1])
    grown = home.root(home.blocks("own", "here", fetched), "grown")
    cut = home.root(fetched[: max(1, length // 2)], "cut")
    mine = home.root(home.blocks("mine", "here"))
    for trusted in (False, True, False):
        (home.trust.add(KEYS[0], "") if trusted else home.trust.remove(KEYS[0]))
        assert [home.usable(each) for each in (root, grown, cut)] == [trusted] * 3
        assert home.usable(mine)
    home.trust.note(root, accepted=True)
    assert all(map(home.usable, (root, grown, cut)))


def test_the_word_for_one_conversation_does_not_cover_what_another_adds(home: Home) -> None:
    good = home.blocks("good", UNKNOWN_DOMAIN)
    bad = home.blocks("bad", UNKNOWN_DOMAIN, good)
    home.trust.note(home.root(good), accepted=True)
    home.trust.note(home.root(bad))
    assert home.usable(home.root(good, "fork"))
    assert not home.usable(home.root(bad[:5], "fork"))
    assert not home.usable(home.root(home.blocks("own", "here", bad), "grown"))
    assert home.usable(home.root(home.blocks("own", "here", good), "grown"))
    home.trust.note(home.root(bad[:5], "another"), accepted=True)
    assert home.usable(home.root(bad[:5], "fork"))
    assert not home.usable(home.root(bad[:6], "fork"))


def test_blocks_that_nobody_is_known_to_have_brought_are_ones_own(home: Home) -> None:
    blocks = home.blocks("lost", UNKNOWN_DOMAIN)  # as after a rebuild of a lost index
    assert home.usable(home.root(blocks))
    home.trust.note(home.root(home.blocks("other", UNKNOWN_DOMAIN)))
    assert home.usable(home.root(blocks))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("length", [3, 256, 300])
def test_a_lost_index_launders_nothing(home: Home, length: int, *, signed: bool) -> None:
    domain = signed_domain(KEYS[0]) if signed else UNKNOWN_DOMAIN
    fetched = home.blocks("f" * length, domain)
    root = home.root(fetched)
    home.trust.note(root, signers=KEYS[:1] if signed else ())
    grown = home.root(home.blocks("own", "here", fetched), "grown")
    cut = home.root(fetched[:2], "cut")
    mine = home.root(home.blocks("mine", "here"))
    home.trust.add(KEYS[0], "")
    expected = [signed] * 3 + [True]
    assert [home.usable(each) for each in (root, grown, cut, mine)] == expected
    forget_everything(home)
    assert home.index.rebuild(home.store).blocks == length + 7
    assert [home.usable(each) for each in (root, grown, cut, mine)] == expected
    home.trust.remove(KEYS[0])
    assert [home.usable(each) for each in (root, grown, cut, mine)] == [False] * 3 + [True]


def forget_everything(home: Home) -> None:
    home.index.close()
    shutil.rmtree(home.folder / "index")
    home.index = Index(home.folder / "index")


def test_what_leaves_is_remembered_by_what_stays(home: Home) -> None:
    fetched = home.blocks("foreign", UNKNOWN_DOMAIN)
    further = home.blocks("more", UNKNOWN_DOMAIN, fetched)
    root, longer = home.root(fetched), home.root(further)
    home.trust.note(root, accepted=True)
    home.trust.note(longer)
    roots = {
        "grown": home.root(home.blocks("own", "here", fetched), "grown"),
        "cut": home.root(fetched[:4], "cut"),
        "beyond": home.root(further[:9], "beyond"),
        "mine": home.root(home.blocks("mine", "here")),
    }
    before = {"grown": True, "cut": True, "beyond": False, "mine": True}
    assert {name: home.usable(each) for name, each in roots.items()} == before
    keep_grounds(home.store, home.index, home.trust, {roots["mine"]}, roots.values())
    assert list(home.trust.grounds()) == []  # the control: nothing of what left came from elsewhere
    keep_grounds(home.store, home.index, home.trust, {root, longer}, roots.values())
    home.store.delete_many([root, longer])
    for lost in (False, True):
        if lost:
            forget_everything(home)
            home.index.rebuild(home.store)
        assert {name: home.usable(each) for name, each in roots.items()} == before
    again = home.root(home.blocks("again", "here", fetched), "again")
    assert home.usable(again)  # by what is known of the others
    keep_grounds(home.store, home.index, home.trust, {*roots.values()}, [again])
    home.store.delete_many(roots.values())
    assert home.trust.unaccept(root)
    assert not home.usable(again)
    assert not home.trust.unaccept(root)
    assert not home.trust.unaccept(again)


def test_what_is_made_of_the_same_rows_in_other_blocks_stands_on_the_same(home: Home) -> None:
    fetched = home.blocks("foreign", UNKNOWN_DOMAIN)
    root = home.root(fetched)
    home.trust.note(root, signers=KEYS[:1])
    grown = home.root(home.blocks("own", "here", fetched), "grown")
    moved = home.root(home.blocks("moved", UNKNOWN_DOMAIN), "other blocks")
    assert home.usable(moved)  # the control
    carry_origin(home.store, home.index, home.trust, grown, moved)
    assert not home.usable(moved)
    home.trust.add(KEYS[0], "")
    assert home.usable(moved)


def test_a_block_of_a_trusted_signer_is_vouched_for_in_any_conversation(home: Home) -> None:
    blocks = home.blocks("ab", signed_domain(KEYS[0]))
    home.trust.note(home.root(blocks), signers=KEYS[:1])
    fork = home.root(blocks[:1], "fork")
    assert not home.usable(fork)
    home.trust.add(KEYS[0], "")
    assert home.usable(fork)


def test_a_receipt_covers_every_field(home: Home) -> None:
    conversation = load_root(home.store, home.root(home.blocks("abc", "here")))
    receipt = make_receipt(ALICE, conversation, "cyberkv 1", "here")
    check_receipt(receipt, conversation)
    assert make_receipt(ALICE, conversation, "cyberkv 1", "here") == receipt
    other = Cid.of(b"other", "dag-cbor", "sha2-256")
    for change in ({"root": other}, {"model": other}, {"producer": KEYS[1]}, {"code": "x"}, {"domain": None},
                   {"prev": other}, {"signature": bytes(64)}):  # fmt: skip
        with pytest.raises(BadSignature):
            check_receipt(replace(receipt, **change))
    with pytest.raises(BadKey):
        check_receipt(replace(receipt, producer=bytes(32)))
    with pytest.raises(MalformedNode, match="root") as caught:
        check_receipt(receipt, replace(conversation, title="another"))
    assert caught.value.data["field"] == "root"


def test_a_receipt_is_a_root(home: Home) -> None:
    root = home.root(home.blocks("abc", "here"))
    receipt = home.store.put_node(make_receipt(ALICE, load_root(home.store, root), "cyberkv 1", None))
    assert list(closure(home.store, receipt)) == [receipt, *closure(home.store, root)]
    assert missing(home.store, receipt) == missing(home.store, root)
    home.store.delete_many([root])
    assert missing(home.store, receipt) == [root]


def test_a_domain_is_named_where_all_blocks_are_of_it(home: Home) -> None:
    here = home.blocks("abc", "here")
    assert common_domain(home.index, here) == "here"
    assert common_domain(home.index, home.blocks("d", "there", here)) is None
    assert common_domain(home.index, home.blocks("x", UNKNOWN_DOMAIN)) is None
    assert common_domain(home.index, home.blocks("y", signed_domain(KEYS[0]))) is None
    assert common_domain(home.index, []) is None


def test_the_folder_is_private_and_forgets_nothing(tmp_path: Path) -> None:
    folder, root = TrustFolder(tmp_path / "trust"), Cid.of(b"root", "dag-cbor", "sha2-256")
    assert (folder.signers(), folder.origin(root), list(folder.origins())) == ((), None, [])
    assert not (tmp_path / "trust").exists()
    folder.note(root)
    folder.note(root, signers=KEYS, receipts=[root])
    folder.note(root, signers=KEYS[1:], accepted=True)
    folder.note(root)
    origin = folder.origin(root)
    assert origin is not None
    assert (set(origin.signers), origin.receipts, origin.accepted) == (set(KEYS), (root,), True)
    folder.note(root, signers=[bytes([at]) * 32 for at in range(2 * MAX_WORDS)])
    for path in (tmp_path / "trust").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert [each.root for each in folder.origins()] == [root]
    assert not folder.remove(KEYS[0])
    with pytest.raises(BadKey):
        folder.add(bytes(32), "nobody")


def test_junk_pushes_out_nobody_who_counts(tmp_path: Path) -> None:
    folder = TrustFolder(tmp_path / "trust")
    root, other = (Cid.of(name, "dag-cbor", "sha2-256") for name in (b"root", b"other"))
    junk = [number.to_bytes(32, "big") for number in range(10_000)]
    trusted, known, first, late = KEYS[0], bytes([254]) * 32, bytes([255]) * 32, KEYS[1]
    words = {each: Cid.of(each, "dag-cbor", "sha2-256") for each in (trusted, known, first, late)}
    folder.add(trusted, "")
    folder.note(other, signers=[known])
    for each in (first, known, trusted):
        folder.note(root, signers=[each], receipts=[words[each]])
    for start in range(0, len(junk), 100):
        some = junk[start : start + 100]
        folder.note(root, signers=some, receipts=[Cid.of(each, "dag-cbor", "sha2-256") for each in some])
    for each in junk[:50]:
        folder.note(root, signers=[each])
    origin = folder.origin(root)
    assert origin is not None
    assert len(origin.signers) == len(origin.receipts) == MAX_WORDS
    assert {trusted, known, first} <= {*origin.signers}
    assert {words[each] for each in (trusted, known, first)} <= {*origin.receipts}
    folder.note(root, signers=[late], receipts=[words[late]])
    assert late not in set(getattr(folder.origin(root), "signers"))  # noqa: B009
    folder.add(late, "")
    folder.note(root, signers=[late], receipts=[words[late]])  # once it is trusted it is heard
    origin = folder.origin(root)
    assert origin is not None
    assert {trusted, known, first, late} <= {*origin.signers}
    assert words[late] in origin.receipts
    before = next((tmp_path / "trust" / "came").iterdir()).stat().st_mtime_ns
    folder.note(root, signers=junk[200:300])
    assert next((tmp_path / "trust" / "came").iterdir()).stat().st_mtime_ns == before  # nothing to write


def test_several_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = TrustFolder(tmp_path)
    keys = [Identity(bytes([at]) * 32).public().signing for at in range(16)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda key: folder.add(key, key.hex()), keys))
    assert folder.trusted() == set(keys)


def test_damage_is_an_error_and_never_trust(tmp_path: Path) -> None:
    folder, root = TrustFolder(tmp_path), Cid.of(b"root", "dag-cbor", "sha2-256")
    folder.add(KEYS[0], "")
    folder.note(root)
    for path in (tmp_path / "signers", next((tmp_path / "came").iterdir())):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt, match="damaged"):
        folder.trusted()
    with pytest.raises(Corrupt, match="damaged"):
        folder.origin(root)
