"""Publish for some, fetch, add, revoke: through real stores and the index, with the states each side keeps."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import ContentKey, Identity, open_grant
from cyberkv.cybergraph.access.folder import AccessFolder
from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.chain import closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    AccessDenied,
    AuthFailed,
    BadKey,
    BadReference,
    BadSignature,
    BlockNotFound,
    Corrupt,
    NotARecipient,
)
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Grant, Sealed
from cyberkv.cybergraph.store import DiskStore, MemoryStore, Store
from cyberkv.cybergraph.transfer.fetch_sealed import fetch_sealed, find_grant
from cyberkv.cybergraph.transfer.granting import grant_access
from cyberkv.cybergraph.transfer.sealed import publish_sealed
from tests.access.sealed import ISSUER, OTHER, READER
from tests.contracts.progress import Counter
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import contents, record

NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.fixture
def their_index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "theirs") as opened:
        yield opened


def lineage(*readers: Identity) -> Lineage:
    made = Lineage.begin("talk", ISSUER.public().signing, NOW, alg=1, kem="x25519")
    for number, reader in enumerate(readers):
        made = made.with_reader(f"reader {number}", reader.public())
    return made


def public_part(store: Store, index: Index) -> MemoryStore:
    """What a gateway would give."""
    shown = MemoryStore()
    shown.put_many((cid, store.get(cid)) for cid in store.cids() if index.is_public(cid))
    return shown


def reading(reader: Identity, folder: AccessFolder | None = None) -> "object":
    def unlock(_: Sealed, grant: Grant) -> ContentKey:
        key = open_grant(grant, reader)
        if folder is not None:
            folder.see(grant)
        return key

    return unlock


def test_what_a_reader_fetches_is_the_conversation(disk_store: DiskStore, index: Index, their_index: Index) -> None:
    root = record(disk_store, blocks=270, tail_tokens=3)
    counter = Counter()
    _, report = publish_sealed(disk_store, index, root, lineage(READER), ISSUER, counter)
    shown = public_part(disk_store, index)
    assert set(shown.cids()) == set(closure(disk_store, report.root))
    assert len(report.cids) == len(list(shown.cids()))
    assert report.bytes == sum(len(shown.get(cid)) for cid in report.cids)
    assert not index.is_public(root)
    theirs = MemoryStore()
    done = fetch_sealed(theirs, their_index, report.root, [StorePeer(shown)], reading(READER))
    assert done.root == root
    assert contents(theirs, root) == contents(disk_store, root)
    with pytest.raises(NotARecipient):
        fetch_sealed(MemoryStore(), their_index, report.root, [StorePeer(shown)], reading(OTHER))


def test_sealing_changes_nothing_about_the_conversation(disk_store: DiskStore, index: Index) -> None:
    root = record(disk_store)
    before = contents(disk_store, root)
    publish_sealed(disk_store, index, root, lineage(), ISSUER)
    assert contents(disk_store, root) == before


def test_the_name_of_a_parent_does_not_leave(disk_store: DiskStore, index: Index, their_index: Index) -> None:
    parent = record(disk_store, blocks=3)
    child = replace(load_root(disk_store, record(disk_store, blocks=4)), parent=parent, fork_at=4)
    cid = disk_store.put_node(child)
    _, report = publish_sealed(disk_store, index, cid, lineage(READER), ISSUER)
    theirs = MemoryStore()
    done = fetch_sealed(theirs, their_index, report.root, [StorePeer(public_part(disk_store, index))], reading(READER))
    assert load_root(theirs, done.root).parent is None
    assert not any(parent in theirs.get(each) for each in theirs.cids())


def test_a_conversation_that_is_not_whole_is_not_sealed(disk_store: DiskStore, index: Index) -> None:
    root = record(disk_store)
    leaf = next(cid for cid in closure(disk_store, root) if cid.codec == "raw")
    disk_store.delete_many([leaf])
    with pytest.raises(BlockNotFound):
        publish_sealed(disk_store, index, root, lineage(), ISSUER)
    assert index.published() == []


def test_adding_a_reader_costs_the_same_for_any_size(
    disk_store: DiskStore, index: Index, their_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, report = publish_sealed(disk_store, index, record(disk_store, blocks=300), lineage(READER), ISSUER)
    before = set(disk_store.cids())
    with monkeypatch.context() as patch:
        patch.setattr("cyberkv.cybergraph.transfer.granting.closure", None)  # it reads all of the page table
        state = grant_access(disk_store, index, state.with_reader("new", OTHER.public()), ISSUER)
    assert state.last is not None
    assert set(disk_store.cids()) - before == {state.last.root, state.last.grant}
    assert Grant.decode(disk_store.get(state.last.grant)).prev == report.grant
    shown = StorePeer(public_part(disk_store, index))
    for reader in (READER, OTHER):
        fetch_sealed(MemoryStore(), their_index, state.last.root, [shown], reading(reader))
    with pytest.raises(NotARecipient):  # the grant of before is what it was
        fetch_sealed(MemoryStore(), their_index, report.root, [shown], reading(OTHER))


def test_adding_a_reader_publishes_what_an_index_has_lost(disk_store: DiskStore, index: Index, tmp_path: Path) -> None:
    state, report = publish_sealed(disk_store, index, record(disk_store), lineage(READER), ISSUER)
    with Index(tmp_path / "anew") as anew:
        state = grant_access(disk_store, anew, state, ISSUER)
        assert state.last is not None
        assert all(map(anew.is_public, closure(disk_store, state.last.root)))
        assert report.root != state.last.root


def test_another_key_than_the_lineage_s_signs_nothing(disk_store: DiskStore, index: Index) -> None:
    root = record(disk_store)
    state, _ = publish_sealed(disk_store, index, root, lineage(READER), ISSUER)
    before = set(disk_store.cids())
    for attempt in (
        lambda: publish_sealed(disk_store, index, root, state, OTHER),
        lambda: grant_access(disk_store, index, state, OTHER),
    ):
        with pytest.raises(BadReference):
            attempt()
    assert set(disk_store.cids()) == before


def test_nobody_is_listed_for_whom_nothing_can_be_wrapped() -> None:
    good = OTHER.public(pq=True)
    for spoilt, kem in (
        (replace(good, sealing=bytes(32)), "x25519"), (replace(good, ring=b"\x02" + bytes(32)), "x25519"),
        (replace(good, pq=None), "mlkem768-x25519"), (replace(good, pq=b"\xff" * 1184), "mlkem768-x25519"),
    ):  # fmt: skip
        state = replace(lineage(), kem=kem)
        with pytest.raises(BadKey):
            state.with_reader("new", spoilt)
        assert state.with_reader("new", good).readers  # control


def test_a_revoked_reader_opens_what_was_published_before(
    disk_store: DiskStore, index: Index, their_index: Index
) -> None:
    root = record(disk_store)
    state, first = publish_sealed(disk_store, index, root, lineage(READER, OTHER), ISSUER)
    state, second = publish_sealed(disk_store, index, root, state.without_reader("reader 0", LATER), ISSUER)
    assert second.epoch == 2
    shown = StorePeer(public_part(disk_store, index))
    fetch_sealed(MemoryStore(), their_index, second.root, [shown], reading(OTHER))
    with pytest.raises(NotARecipient):
        fetch_sealed(MemoryStore(), their_index, second.root, [shown], reading(READER))
    fetch_sealed(MemoryStore(), their_index, first.root, [shown], reading(READER))
    old, new = (set(closure(disk_store, each)) for each in (first.root, second.root))
    assert not old & new


def test_an_earlier_epoch_is_refused_once_a_later_one_was_seen(
    disk_store: DiskStore, index: Index, their_index: Index, tmp_path: Path
) -> None:
    root = record(disk_store)
    state, first = publish_sealed(disk_store, index, root, lineage(READER), ISSUER)
    _, second = publish_sealed(disk_store, index, root, state.rotated(LATER), ISSUER)
    shown = StorePeer(public_part(disk_store, index))
    fetch_sealed(MemoryStore(), their_index, first.root, [shown], reading(READER, AccessFolder(tmp_path / "a")))
    fetch_sealed(MemoryStore(), their_index, second.root, [shown], reading(READER, AccessFolder(tmp_path / "a")))
    with pytest.raises(AccessDenied) as caught:
        fetch_sealed(MemoryStore(), their_index, first.root, [shown], reading(READER, AccessFolder(tmp_path / "a")))
    assert caught.value.data == {"epoch": 1, "seen": 2}


def test_two_keys_of_one_epoch_are_seen(
    disk_store: DiskStore, index: Index, their_index: Index, tmp_path: Path
) -> None:
    root = record(disk_store)
    state = lineage(READER)
    _, first = publish_sealed(disk_store, index, root, state, ISSUER)
    _, second = publish_sealed(disk_store, index, root, replace(state, key=bytes(32)), ISSUER)
    shown = StorePeer(public_part(disk_store, index))
    folder = AccessFolder(tmp_path / "access")
    fetch_sealed(MemoryStore(), their_index, first.root, [shown], reading(READER, folder))
    with pytest.raises(AuthFailed):
        fetch_sealed(MemoryStore(), their_index, second.root, [shown], reading(READER, folder))


def test_a_grant_of_another_conversation_is_refused(disk_store: DiskStore, index: Index) -> None:
    _, first = publish_sealed(disk_store, index, record(disk_store), lineage(READER), ISSUER)
    _, second = publish_sealed(disk_store, index, record(disk_store, seed="b"), lineage(READER), ISSUER)
    mixed = disk_store.put_node(replace(Sealed.decode(disk_store.get(first.root)), grant=second.grant))
    with pytest.raises(AuthFailed):
        find_grant(mixed, [StorePeer(disk_store)])
    forged = disk_store.put_node(replace(Grant.decode(disk_store.get(first.grant)), epoch=9))
    broken = disk_store.put_node(replace(Sealed.decode(disk_store.get(first.root)), grant=forged, epoch=9))
    with pytest.raises(BadSignature):
        find_grant(broken, [StorePeer(disk_store)])


def test_a_wrong_key_is_told_before_anything_moves(disk_store: DiskStore, index: Index, their_index: Index) -> None:
    _, report = publish_sealed(disk_store, index, record(disk_store), lineage(), ISSUER)
    peer = StorePeer(public_part(disk_store, index))
    with pytest.raises(AuthFailed):
        fetch_sealed(MemoryStore(), their_index, report.root, [peer], lambda *_: ContentKey(bytes(32)))
    assert len(peer.asked) == 2


def test_a_lineage_is_kept_whole_and_private(tmp_path: Path) -> None:
    folder = AccessFolder(tmp_path / "access")
    assert folder.lineage("talk") is None
    made = lineage(READER)
    folder.keep(made)
    folder.keep(replace(made, name="../other"))
    assert folder.lineage("talk") == made
    assert {each.name for each in folder.lineages()} == {"talk", "../other"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "access").rglob("*"))
    assert made.key.hex() not in repr(made)
    for path in (tmp_path / "access" / "given").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt):
        folder.lineage("talk")


def test_readers_are_named_by_label_fingerprint_or_key() -> None:
    made = lineage(READER, OTHER)
    for who in ("reader 1", OTHER.public().fingerprint, str(OTHER.public())):
        left = made.without_reader(who, LATER)
        assert [each.label for each in left.readers] == ["reader 0"]
        assert (left.epoch, left.started) == (2, LATER)
        assert left.key != made.key
    with pytest.raises(BadReference):
        made.without_reader("nobody", LATER)
    again = made.with_reader("Reader", READER.public())
    assert sorted(each.label for each in again.readers) == ["Reader", "reader 1"]


def test_growth_shares_what_was_sealed(disk_store: DiskStore, index: Index) -> None:
    state, first = publish_sealed(disk_store, index, record(disk_store, blocks=256), lineage(READER), ISSUER)
    _, second = publish_sealed(disk_store, index, record(disk_store, blocks=300), state, ISSUER)
    shared = set(closure(disk_store, first.root)) & set(closure(disk_store, second.root))
    assert len(shared) > 256 * 2
    assert isinstance(second.root, Cid)
