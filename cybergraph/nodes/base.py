"""What every node type shares: a frozen dataclass that is a view of canonical bytes.

A class names its fields once, in `KINDS`, by their names on the wire (a Python keyword gets a trailing underscore as
an attribute). The order of dag-cbor, the constant `type` and `version`, both directions and every check follow.
"""

import keyword
from typing import Any, ClassVar, Self

from ..cid import Buffer, Cid
from ..dagcbor import check_canonical, encode, encode_text, head, parse
from ..errors import Corrupt, MalformedNode, UnsupportedFormat
from .kinds import Kind, wrong

_MAP = 5


class Record:
    """A map with fixed keys. Subclasses are frozen dataclasses whose fields match `KINDS`."""

    KINDS: ClassVar[dict[str, Kind]] = {}
    CONSTANTS: ClassVar[dict[str, str | int]] = {}
    """Fields with one allowed value, such as `type`."""

    _LAYOUT: ClassVar[tuple[tuple[bytes, str, Kind | None], ...]]

    def __init_subclass__(cls) -> None:
        names = sorted([*cls.KINDS, *cls.CONSTANTS], key=lambda name: (len(name), name))
        cls._LAYOUT = tuple(
            (encode_text(name) + (encode(cls.CONSTANTS[name]) if name in cls.CONSTANTS else b""), attribute(name),
             cls.KINDS.get(name))
            for name in names
        )  # fmt: skip

    def encode(self) -> bytes:
        """Check every field and give canonical dag-cbor. Raises `MalformedNode` naming the field."""
        parts = [head(_MAP, len(self._LAYOUT))]
        name = ""
        try:
            for key, name, kind in self._LAYOUT:
                parts.append(key if kind is None else key + kind.encode(getattr(self, name)))
        except (Corrupt, AttributeError, TypeError) as error:
            raise _in_field(name, error) from error
        return b"".join(parts)

    @classmethod
    def from_item(cls, item: Any) -> Self:
        """Read a parsed map that must hold exactly the fields of this class. Raises `MalformedNode`."""
        if type(item) is not dict:
            raise wrong("a map", item)
        if len(item) != len(cls._LAYOUT) or not item.keys() <= {*cls.KINDS, *cls.CONSTANTS}:
            known = {*cls.KINDS, *cls.CONSTANTS}
            unknown, missing = sorted(map(str, item.keys() - known)), sorted(known - item.keys())
            word, field = ("unknown", unknown[0]) if unknown else ("missing", missing[0])
            raise MalformedNode(f"{word} field {field!r}", field=field)
        for name, constant in cls.CONSTANTS.items():
            if item[name] != constant or type(item[name]) is not type(constant):
                raise MalformedNode(f"field {name!r}: expected {constant!r}, got {item[name]!r:.40}", field=name)
        values, name = {}, ""
        try:
            for name, kind in cls.KINDS.items():
                values[attribute(name)] = kind.read(item[name])
        except Corrupt as error:
            raise _in_field(name, error) from error
        return cls(**values)


def attribute(name: str) -> str:
    """Give the attribute that holds a wire field: `from` becomes `from_`."""
    return name + "_" if keyword.iskeyword(name) else name


def _in_field(name: str, error: Exception) -> MalformedNode:
    data = dict(error.data) if isinstance(error, Corrupt) else {}
    name = name.removesuffix("_")
    data["field"] = f"{name}.{data['field']}" if "field" in data else name
    reason = error.args[0] if isinstance(error, MalformedNode) and "reason" not in data else str(error)
    data["reason"] = data.get("reason", reason)
    return MalformedNode(f"field {data['field']!r}: {data['reason']}", **data)


class Nested:
    """The kind of a field that holds a `Record`."""

    def __init__(self, record: type[Record]) -> None:
        self.record = record

    def read(self, item: Any) -> Record:
        """Read the inner map."""
        return self.record.from_item(item)

    def encode(self, value: Record) -> bytes:
        """Encode the inner map."""
        if type(value) is not self.record:
            raise wrong(self.record.__name__, value)
        return value.encode()


class Node(Record):
    """A dag-cbor block with `type` and `version` beside its fields."""

    TYPE: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.CONSTANTS = {"type": cls.TYPE, "version": 1}
        super().__init_subclass__()

    def cid(self) -> Cid:
        """Name the node: sha2-256 of its bytes."""
        return Cid.of(self.encode(), "dag-cbor", "sha2-256")

    @classmethod
    def decode(cls, data: Buffer, *, verify: Cid | None = None) -> Self:
        """Read one node of this type; with `verify`, check its hash first.

        Raises `DigestMismatch`, `MalformedCbor`, `MalformedNode` (naming the field), `LimitExceeded`, and
        `UnsupportedFormat` for a version this program does not know.
        """
        if verify is not None:
            verify.verify(data)
        return cls.from_parsed(parse(data), data)

    @classmethod
    def from_parsed(cls, item: Any, data: Buffer) -> Self:
        """Read a node from what `dagcbor.parse` gave for `data`, and prove that `data` is its canonical form."""
        if type(item) is dict and item.get("type") == cls.TYPE and type(v := item.get("version")) is int and v > 1:
            raise UnsupportedFormat(
                f"{cls.TYPE} version {v}, this program reads version 1", hint="a newer cyberkv may read it", field="version"
            )
        node = cls.from_item(item)
        check_canonical(data, node.encode())
        return node
