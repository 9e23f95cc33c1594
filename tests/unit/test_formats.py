"""The written formats keep up with the code: the schema file and docs/formats.md name every field and limit."""

import re
from pathlib import Path

import pytest

from cyberkv.cybergraph import limits
from cyberkv.cybergraph.nodes import TYPES, NextBlock, Record, Rope, Signature, Tail

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
