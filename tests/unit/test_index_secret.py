"""The secret of an index: no key is stored without it, it has one winner, old indexes get one, a lost one is told."""

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.database import Database
from cyberkv.cybergraph.errors import Corrupt, CyberKVError
from cyberkv.cybergraph.index import Index, keying
from cyberkv.cybergraph.index.secret import make_secret, read_secret, secret_path
from cyberkv.cybergraph.prefix import keyed, prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.first_index import make_first_version
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_model

MODEL = make_model().cid()
TOKENS = list(range(24))
KEYS = list(prefix_keys(MODEL, TOKENS, BLOCK_SIZE))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "index"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put_node(make_model())
    return store


def fill(path: Path, store: MemoryStore) -> list[Cid]:
    blocks = make_blocks(store, MODEL, TOKENS)
    with Index(path) as index:
        index.add_blocks(entries(MODEL, TOKENS, blocks))
        index.set_head("talk", MODEL, "")
        assert index.lookup_chain(KEYS, "test") == blocks
    return blocks


def all_bytes(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file())


def diverge(path: Path) -> None:
    """Add a divergence to an index of the first version."""
    with closing(Database.open(path, {"divergences": False})) as database:
        key = KEYS[0] + bytes(36) + b"test"
        database.write(lambda txn: txn.put(key, bytes(MODEL) * 2, db=database["divergences"]))


def test_an_index_cannot_be_asked_without_its_secret(path: Path, store: MemoryStore, tmp_path: Path) -> None:
    blocks = fill(path, store)
    held = all_bytes(path)
    secret = secret_path(path).read_bytes()
    assert secret not in held
    for key in KEYS:
        assert key not in held
        assert keyed(key, secret) in held  # the control
    shutil.copytree(path, tmp_path / "copy" / "index")
    with pytest.raises(Corrupt, match="is gone"):
        Index(tmp_path / "copy" / "index", make=False)
    shutil.copy(secret_path(path), tmp_path / "copy")
    with Index(tmp_path / "copy" / "index", make=False) as index:
        assert index.lookup_chain(KEYS, "test") == blocks


def test_two_homes_file_the_same_text_differently(tmp_path: Path, store: MemoryStore) -> None:
    first, second = tmp_path / "a" / "index", tmp_path / "b" / "index"
    assert fill(first, store) == fill(second, store)
    with Index(first) as a, Index(second) as b:
        assert {each.block for each in a.entries()} == {each.block for each in b.entries()}
        assert not {each.key for each in a.entries()} & {each.key for each in b.entries()}


def test_the_file_is_private_and_made_once(path: Path) -> None:
    with Index(path):
        made = secret_path(path).read_bytes()
    assert secret_path(path).stat().st_mode & 0o777 == 0o600
    assert len(made) == 32
    with Index(path):
        assert secret_path(path).read_bytes() == made
    assert sorted(each.name for each in path.parent.iterdir()) == ["index", "index.secret"]


def test_of_several_who_make_it_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "index.secret"
    with ThreadPoolExecutor(16) as threads:
        made = set(threads.map(make_secret, [path] * 64))
    assert made == {path.read_bytes()}
    assert list(tmp_path.iterdir()) == [path]


def _open_and_add(path: Path) -> None:
    with Index(path) as index:
        index.add_blocks(entries(MODEL, TOKENS, make_blocks(MemoryStore(), MODEL, TOKENS)))


def test_processes_that_make_an_index_together_agree(path: Path) -> None:
    context = get_context("spawn")
    processes = [context.Process(target=_open_and_add, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    with Index(path, make=False) as index:
        assert len(index.lookup_chain(KEYS, "test")) == len(KEYS)
        assert len(list(index.entries())) == len(KEYS)


def test_an_index_of_the_first_version_is_brought_to_this_one(path: Path, store: MemoryStore) -> None:
    blocks = fill(path, store)
    make_first_version(path, store)
    diverge(path)
    assert KEYS[0] in all_bytes(path)
    with Index(path, make=False) as index:
        assert index.was_rekeyed
        assert index.lookup_chain(KEYS, "test") == blocks
        assert [index.domain_of(block) for block in blocks] == ["test"] * len(blocks)
        assert [each.key for each in index.divergences()] == [index.filed_as(KEYS[0])]
        assert index.head("talk").root == MODEL
        assert list(index.check()) == []
        assert not {each.key for each in index.entries()} & {*KEYS}
    with Index(path, make=False) as index:
        assert not index.was_rekeyed
        assert index.lookup_chain(KEYS, "test") == blocks


def test_an_index_of_the_first_version_is_read_where_nothing_can_be_written(path: Path, store: MemoryStore) -> None:
    blocks = fill(path, store)
    make_first_version(path, store)
    before = (path / "data.mdb").read_bytes()
    with Index(path, make=False, read_only=True) as index:
        assert (index.was_rekeyed, index.lookup_chain(KEYS, "test")) == (False, blocks)
    assert (path / "data.mdb").read_bytes() == before
    assert not secret_path(path).exists()


def test_an_index_of_the_first_version_in_a_closed_folder_goes_on_as_it_was(
    path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = fill(path, store)
    make_first_version(path, store)

    def closed(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")  # the tests may run as root, who may write anywhere

    monkeypatch.setattr(keying, "make_secret", closed)
    with Index(path, make=False) as index:
        assert (index.was_rekeyed, index.lookup_chain(KEYS, "test")) == (False, blocks)
    assert not secret_path(path).exists()
    with pytest.raises(CyberKVError, match="Permission denied"):
        Index(path.with_name("new"))


@pytest.mark.parametrize("harm", ["gone", "other", "short", "link"])
def test_a_lost_secret_is_told_and_a_rebuild_helps(path: Path, store: MemoryStore, harm: str) -> None:
    blocks = fill(path, store)
    file = secret_path(path)
    kept = file.read_bytes()
    file.unlink()
    if harm == "other":
        file.write_bytes(bytes(32))
    elif harm == "short":
        file.write_bytes(kept[:-1])
    elif harm == "link":
        file.symlink_to(path.parent / "elsewhere")
    with pytest.raises(Exception, match=r"index\.secret") as caught:
        Index(path, make=False)
    assert "Traceback" not in str(caught.value)
    if harm in ("short", "link"):
        file.unlink()  # as the hint says
    with Index(path, make=True) as index:
        assert index.lookup_chain(KEYS, "test") == []
        index.rebuild(store)
        assert index.lookup_chain(KEYS, "test") == blocks  # the domains are known still
        assert index.head("talk").root == MODEL
        assert list(index.check()) == []
    with Index(path, make=False) as index:
        assert index.lookup_chain(KEYS, "test") == blocks
    assert read_secret(file) not in (None, kept)


def test_an_error_of_the_index_names_no_key(path: Path, store: MemoryStore) -> None:
    blocks = make_blocks(store, MODEL, TOKENS)
    rows = list(entries(MODEL, TOKENS, blocks))
    with Index(path) as index:
        index.add_blocks(rows)
        with pytest.raises(Corrupt) as caught:
            index.add_blocks([rows[0]._replace(prefix=KEYS[3])])
    told = str(caught.value) + str(caught.value.data)
    assert not any(key.hex()[:12] in told for key in KEYS)
