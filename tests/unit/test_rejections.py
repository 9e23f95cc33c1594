"""The rejection corpus: every row is refused, with the kind of error and the field it names."""

import csv
import io
from collections.abc import Callable

import pytest

from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import decode
from cyberkv.cybergraph.errors import CyberKVError
from cyberkv.cybergraph.nodes import decode_node
from fixtures.golden import NODES
from fixtures.make import FOLDER

READERS: dict[str, Callable[[bytes], object]] = {
    "cbor": decode,
    "node": decode_node,
    "cid": Cid,
    "text": lambda data: Cid.parse(data.decode()),
    "car": lambda data: list(read_car(io.BytesIO(data))),
}
with (FOLDER / "rejections.tsv").open(newline="") as file:
    ROWS = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['reader']}-{row['case']}: {row['operation']}")
def test_refused(row: dict[str, str]) -> None:
    with pytest.raises(CyberKVError) as caught:
        READERS[row["reader"]](bytes.fromhex(row["hex"]))
    assert caught.value.kind == row["kind"]
    if row["field"]:
        assert caught.value.data["field"] == row["field"]


def test_control_the_same_readers_accept_good_bytes() -> None:
    for node in NODES.values():
        assert READERS["node"](node.encode()) == node
        assert READERS["cbor"](node.encode())
        assert READERS["cid"](bytes(node.cid())) == node.cid()
        assert READERS["text"](str(node.cid()).encode()) == node.cid()
    assert READERS["car"]((FOLDER / "golden.car").read_bytes())


def test_every_reader_and_many_rules_are_covered() -> None:
    assert {row["reader"] for row in ROWS} == set(READERS)
    assert len({(row["reader"], row["case"]) for row in ROWS}) > 300
    assert len({row["hex"] for row in ROWS if row["reader"] == "node"}) == sum(row["reader"] == "node" for row in ROWS)
