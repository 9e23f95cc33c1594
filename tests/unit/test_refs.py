"""What a person types: names, CIDs, prefixes of CIDs."""

import pytest

from cyberkv.cybergraph.cid import Cid, HashName
from cyberkv.cybergraph.errors import BadReference, MalformedCid, NameNotFound
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.refs import resolve
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from tests.contracts.synthetic import make_model


@pytest.fixture
def models(disk_store: DiskStore) -> list[Cid]:
    nodes = [make_model(str(number)) for number in range(200)]
    disk_store.put_many((node.cid(), node.encode()) for node in nodes)
    return [node.cid() for node in nodes]


def test_names_and_whole_cids(index: Index, disk_store: DiskStore, models: list[Cid]) -> None:
    index.set_head("talk", models[0], "")
    assert resolve("talk", index, disk_store) == models[0]
    assert resolve(str(models[1]), index, disk_store) == models[1]
    unknown = Cid.of(b"elsewhere", "raw", "blake3")
    assert resolve(str(unknown), index, disk_store) == unknown  # read, not looked up


def test_prefixes_of_every_length(index: Index, disk_store: DiskStore, models: list[Cid]) -> None:
    text = str(models[7])
    others = [str(cid) for cid in models if cid != models[7]]
    for length in range(8, 59):
        if any(other.startswith(text[:length]) for other in others):
            with pytest.raises(BadReference):
                resolve(text[:length], index, disk_store)
        else:
            assert resolve(text[:length], index, disk_store) == models[7]


def test_an_ambiguous_prefix_lists_its_candidates(index: Index, disk_store: DiskStore, models: list[Cid]) -> None:
    letters: dict[str, list[str]] = {}
    for cid in models:
        letters.setdefault(str(cid)[:8], []).append(str(cid))
    prefix, fitting = next((key, value) for key, value in letters.items() if len(value) > 10)
    with pytest.raises(BadReference) as caught:
        resolve(prefix, index, disk_store)
    assert caught.value.exit_code == 2
    assert caught.value.data["candidates"] == sorted(fitting, key=Cid.parse)[:10]
    assert f"fits {len(fitting)} CIDs" in str(caught.value)


def test_roots_known_to_the_index_alone(index: Index) -> None:
    old, new = make_model("old").cid(), make_model("new").cid()
    index.set_head("talk", old, "")
    index.set_head("talk", new, "")
    assert resolve(str(old)[:20], index, MemoryStore()) == old
    assert resolve(str(new)[:20], index, MemoryStore()) == new


@pytest.mark.parametrize("hash_name", ["sha2-256", "blake3"])
def test_leaves_are_found_by_their_own_prefixes(
    index: Index, disk_store: DiskStore, models: list[Cid], hash_name: HashName
) -> None:
    leaf, other = (Cid.of(data, "raw", hash_name) for data in (b"leaf", b"other"))
    disk_store.put_many([(leaf, b"leaf"), (other, b"other")])
    assert resolve(str(leaf)[:20], index, disk_store) == leaf
    assert resolve(str(models[0])[:20], index, disk_store) == models[0]


@pytest.mark.parametrize(
    "ref", ["", "nobody", "bafyrei", "bafyreix1", "BAFYREIA", "a\0b", "bafyrei!", "x" * 1000, "\ud800"]
)
def test_what_fits_nothing(index: Index, disk_store: DiskStore, models: list[Cid], ref: str) -> None:
    with pytest.raises(NameNotFound):
        resolve(ref, index, disk_store)


def test_a_cid_with_a_wrong_letter(index: Index, disk_store: DiskStore, models: list[Cid]) -> None:
    with pytest.raises(MalformedCid):
        resolve(str(models[0])[:-1] + "1", index, disk_store)


def test_no_name_hides_a_cid(index: Index, disk_store: DiskStore, models: list[Cid]) -> None:
    for length in (8, 20, 59):
        with pytest.raises(BadReference):
            index.set_head(str(models[0])[:length], models[1], "")
    index.set_head(str(models[0])[:6], models[1], "")  # too short for a prefix
    assert resolve(str(models[0])[:6], index, disk_store) == models[1]
    assert resolve(str(models[0])[:20], index, disk_store) == models[0]
