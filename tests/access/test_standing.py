"""Whose word a conversation stands on, at any length; and the private files that say so."""

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.receipt import check_receipt, common_domain, make_receipt
from cyberkv.cybergraph.access.standing import require_usable
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
