"""The written formats keep up with the code: the schema file and docs/formats.md name every field and limit."""

import hashlib
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cyberkv.cybergraph import limits
from cyberkv.cybergraph.access.proof import (
    DEFAULT_SCHEME,
    MAX_CHALLENGE_BYTES,
    MAX_LIFETIME_S,
    MIN_RING_KEYS,
    MOST_OPEN_EACH,
    SCHEMES,
    SKEW_S,
)
from cyberkv.cybergraph.dagcbor import parse
from cyberkv.cybergraph.gateway.door import MOST_ASKED_BYTES, MOST_PROOF_BYTES
from cyberkv.cybergraph.nodes import TYPES, NextBlock, Record, Rope, Signature, Tail
from fixtures.proofs import challenge, vectors

TOP = Path(__file__).parents[2]
SCHEMA = (TOP / "cybergraph" / "cyberkv.ipldsch").read_text()
FORMATS = (TOP / "docs" / "formats.md").read_text()
STRUCTS = dict(re.findall(r"^type (\w+) struct \{\n(.*?)^\}", SCHEMA, re.MULTILINE | re.DOTALL))
RECORDS: list[type[Record]] = [*TYPES.values(), Rope, Signature, NextBlock, Tail]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_schema_has_exactly_the_fields(record: type[Record]) -> None:
    lines = STRUCTS[record.__name__].strip().splitlines()
    fields = [line.split()[0] for line in lines]
    constants = ["version"] if record in TYPES.values() else [*record.CONSTANTS]
    assert fields == [*constants, *record.KINDS]
    for line in lines:
        nullable = type(record.KINDS.get(line.split()[0])).__name__ == "Maybe"
        assert ("nullable" in line) == nullable, line


def test_the_schema_has_every_node_type_and_no_other_struct() -> None:
    assert dict(re.findall(r'^  \| (\w+) "(cyberkv/[\w-]+)"$', SCHEMA, re.MULTILINE)) == {
        cls.__name__: name for name, cls in TYPES.items()
    }
    assert {*STRUCTS} == {record.__name__ for record in RECORDS}


@pytest.mark.parametrize("name", TYPES)
def test_the_page_describes_every_field(name: str) -> None:
    section = FORMATS.split(f"### `{name}`")[1].split("\n## ")[0].split("\n### ")[0]
    inner = {"cyberkv/model": Rope, "cyberkv/model-card": Signature, "cyberkv/segment": NextBlock}
    records = [TYPES[name], *([inner[name]] if name in inner else [])]
    for field in [field for record in records for field in record.KINDS]:
        assert f"`{field}`" in section, field


def test_the_page_states_every_limit() -> None:
    section = FORMATS.split("## 9. Limits")[1].split("\n## ")[0]
    stated = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", section)}
    stated |= {int(number) << 20 for number in re.findall(r"(\d+) MiB", section)}
    elsewhere = {"MAX_CAR_SECTION_BYTES", "MAX_LAYERS", "MAX_TITLE_BYTES"}
    for limit, value in vars(limits).items():
        if limit.startswith("MAX_") and limit not in elsewhere:
            assert value in stated, limit


def test_the_page_has_the_bytes_of_a_proof_that_the_code_makes() -> None:
    section = FORMATS.split("## 14. Proofs of access")[1].split("\n## ")[0]
    shown = ["".join(block.split()) for block in re.findall(r"^```\n([0-9a-f\n]+)^```", section, re.MULTILINE)]
    made = vectors()[DEFAULT_SCHEME]
    assert isinstance(made, dict)
    assert shown == [made["challenge"], made["statement"], made["proof"]]
    asked = challenge(DEFAULT_SCHEME)
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(parse(asked.encode()))
    for scheme in SCHEMES:
        assert f"| `{scheme}` |" in section
    for label in ("cyberkv/proof/v1", "cyberkv/proof/ring-or/hash/1", "cyberkv/proof/ring-or/draw/1"):
        assert f'lp("{label}")' in section
    numbers = {int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", section)}
    assert {MAX_CHALLENGE_BYTES, MOST_ASKED_BYTES, MOST_PROOF_BYTES >> 10, MOST_OPEN_EACH, SKEW_S} <= numbers
    assert {SKEW_S + MAX_LIFETIME_S, MIN_RING_KEYS} <= numbers


def test_a_stranger_makes_the_statement_from_the_page_alone() -> None:
    """Every byte by hand, with no code of the project."""

    def cid(codec: int, text: bytes) -> bytes:
        return bytes((0xD8, 0x2A, 0x58, 0x25, 0x00, 0x01, codec, 0x12, 0x20)) + hashlib.sha256(text).digest()

    def text(words: str) -> bytes:
        return (bytes((0x60 + len(words),)) if len(words) < 24 else bytes((0x78, len(words)))) + words.encode()

    def lp(part: bytes) -> bytes:
        return len(part).to_bytes(4, "big") + part

    scheme = "access-sig/ed25519/1"
    asked = b"".join(
        (
            b"\xa8", text("root"), cid(0x55, b"root"), text("type"), text("cyberkv/challenge"), text("grant"),
            cid(0x71, b"grant"), text("nonce"), b"\x58\x20", bytes(range(0x60, 0x80)), text("scheme"), text(scheme),
            text("version"), b"\x01", text("audience"), text("https://gateway.example"), text("expires_s"), b"\x1a",
            (1_800_000_060).to_bytes(4, "big"),
        )
    )  # fmt: skip
    seed = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    statement = lp(b"cyberkv/proof/v1") + lp(scheme.encode()) + lp(asked) + lp(seed.public_key().public_bytes_raw())
    for each in (asked, statement, seed.sign(statement)):
        assert each.hex() in "".join(FORMATS.split())
