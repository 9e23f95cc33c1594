"""The golden files: made again by their script, read back as what they came from, proof against change."""

import json

import pytest

from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import Corrupt, CyberKVError, DigestMismatch
from cyberkv.cybergraph.nodes import TYPES, Block, Node, decode_node
from fixtures.golden import BLOCK, CAR_BLOCKS, CARD_BLOCKS, CONVERSATION, NODES, WHOLE_CARD
from fixtures.make import FOLDER, build

BUILT = build()
VECTORS = json.loads((FOLDER / "vectors.json").read_text())
GOLDEN = BLOCK.encode()


@pytest.mark.parametrize("name", BUILT)
def test_the_script_gives_the_committed_file(name: str) -> None:
    assert (FOLDER / name).read_bytes() == BUILT[name], f"{name} changed: was the format meant to change?"


def test_there_is_a_golden_node_of_every_type_and_no_stray_file() -> None:
    assert {node.TYPE for node in NODES.values()} == set(TYPES)
    found = {str(path.relative_to(FOLDER)) for path in (FOLDER / "nodes").iterdir()}
    assert found == {name for name in BUILT if name.startswith("nodes/")}


@pytest.mark.parametrize("name", NODES)
def test_golden_node(name: str) -> None:
    vector, expected = VECTORS["nodes"][name], NODES[name]
    data = (FOLDER / vector["file"]).read_bytes()
    cid = Cid.parse(vector["cid"])
    node = decode_node(data, verify=cid)
    assert node == expected
    assert type(node) is type(expected)
    assert type(expected).decode(data, verify=cid) == expected
    assert node.encode() == data
    assert node.cid() == cid
    assert (node.TYPE, len(data)) == (vector["type"], vector["size_bytes"])
    for other in NODES.values():
        if other != expected:
            assert other.cid() != cid
            with pytest.raises(DigestMismatch):
                type(other).decode(data, verify=other.cid())


@pytest.mark.parametrize(
    ("name", "root", "expected"),
    [("car", CONVERSATION.cid(), CAR_BLOCKS), ("model", WHOLE_CARD.cid(), CARD_BLOCKS)],
)
def test_golden_car(name: str, root: Cid, expected: list[tuple[Cid, bytes]]) -> None:
    with (FOLDER / VECTORS[name]["file"]).open("rb") as file:
        reader = read_car(file)
        assert [str(each) for each in reader.roots] == VECTORS[name]["roots"] == [str(root)]
        blocks = list(reader)
    assert blocks == expected
    assert [str(cid) for cid, _ in blocks] == VECTORS[name]["blocks"]


@pytest.mark.parametrize("verified", [True, False])
def test_every_truncation_is_refused(verified: bool) -> None:
    for size in range(len(GOLDEN)):
        expect_refused(GOLDEN[:size], DigestMismatch if verified else Corrupt, verified)


def test_every_flipped_bit_is_refused_by_the_hash() -> None:
    for data in flips(GOLDEN):
        expect_refused(data, DigestMismatch, True)


def test_every_flipped_bit_is_refused_or_another_whole_node() -> None:
    refused = accepted = 0
    for data in flips(GOLDEN):
        try:
            node = Block.decode(data)
        except CyberKVError:
            refused += 1
            continue
        accepted += 1
        assert node != BLOCK
        assert node.cid() != BLOCK.cid()
        assert node.encode() == data
    assert refused > 500
    assert accepted > 1000


@pytest.mark.parametrize("name", NODES)
def test_flips_of_other_nodes_never_escape_the_error_tree(name: str) -> None:
    for data in flips(NODES[name].encode()):
        node: Node | None = None
        try:
            node = decode_node(data)
        except CyberKVError:
            continue
        assert node.encode() == data
        assert node != NODES[name]


def flips(data: bytes) -> list[bytes]:
    return [data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]


def expect_refused(data: bytes, error: type[CyberKVError], verified: bool) -> None:
    with pytest.raises(error):
        Block.decode(data, verify=BLOCK.cid() if verified else None)
