"""The golden files as JavaScript implementations of dag-cbor, CAR, CID, blake3 and IPLD schemas read them."""

import csv
import json
from typing import Any

import pytest

from fixtures.golden import CAR_BLOCKS, CONVERSATION, NODES
from fixtures.make import FOLDER

pytestmark = pytest.mark.compat

VECTORS = json.loads((FOLDER / "vectors.json").read_text())
LAXER = {
    "floats, which no node holds": ["float-half", "float-single", "float-double"],
    "undefined": ["undefined"],
    "integers beyond 64 signed bits": ["integer-large", "integer-largest", "integer-small"],
    "CIDs of other forms": ["link-version-0", "link-dag-pb", "link-sha2-512", "link-short-digest"],
    "keys out of order (checked when it encodes)": ["key-order-length", "key-order-bytes"],
    "text that is not UTF-8, read with replacement letters": [
        "utf8-text-byte", "utf8-text-overlong", "utf8-text-surrogate", "utf8-key", "utf8-text-cut-char",
        "utf8-text-beyond",
    ],
    "any depth": ["depth-list", "depth-map"],
}  # fmt: skip
"""What the JavaScript decoder accepts and this project refuses."""


@pytest.mark.parametrize("name", NODES)
def test_nodes(report: dict[str, Any], name: str) -> None:
    found = report["nodes"][name]
    assert found["type"] == NODES[name].TYPE
    assert found["reencodes"]
    assert found["cid"] == VECTORS["nodes"][name]["cid"] == str(NODES[name].cid())


@pytest.mark.parametrize("name", NODES)
def test_nodes_fit_the_schema_and_controls_do_not(report: dict[str, Any], name: str) -> None:
    found = report["nodes"][name]
    assert found["fits"]
    assert found["fitsWithout"] == [], "a field could be left out unnoticed"
    assert not found["fitsWithMore"]


def test_car_is_read_and_every_block_hashed(report: dict[str, Any]) -> None:
    assert report["car"]["roots"] == [str(CONVERSATION.cid())]
    assert [name for name, _ in report["car"]["blocks"]] == [str(cid) for cid, _ in CAR_BLOCKS]
    assert all(name == rehashed for name, rehashed in report["car"]["blocks"])


def test_car_written_elsewhere_is_byte_for_byte_ours(report: dict[str, Any]) -> None:
    assert report["written"].read_bytes() == (FOLDER / "golden.car").read_bytes()


def test_cids_and_prefix_keys(report: dict[str, Any]) -> None:
    assert report["cids"] == [True] * len(VECTORS["cids"])
    assert report["prefix"] == VECTORS["prefix_keys"]["keys"]


def test_rejections_are_shared_except_where_the_other_is_known_to_be_laxer(report: dict[str, Any]) -> None:
    with (FOLDER / "rejections.tsv").open(newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        cases = {row["case"] for row in rows if row["reader"] == "cbor"}
    laxer = {case for cases in LAXER.values() for case in cases}
    assert laxer <= cases
    assert {*report["accepted"]} <= laxer
    assert len(cases - {*report["accepted"]}) > 60
