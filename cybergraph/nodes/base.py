"""What every node type shares: a frozen dataclass that is a view of canonical bytes.

A class states each field once, as a dataclass field annotated with its kind. The name on the wire is the name
of the field (a Python keyword gets a trailing underscore as an attribute). The order of dag-cbor, the
constant `type` and `version`, both directions and every check follow from that.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, ClassVar, Self

from ..cid import Buffer, Cid
from ..dagcbor import check_canonical, encode, encode_text, key_order, map_head, not_canonical, parse
from ..errors import Corrupt, MalformedNode, UnsupportedFormat
from .kinds import Kind, wrong


class Record:
    """A map with fixed keys. Subclasses are frozen dataclasses of fields `name: Annotated[type, kind]`."""

    KINDS: ClassVar[dict[str, Kind]] = {}
    """Kind of each field by its wire name, in the order of the dataclass."""
    CONSTANTS: ClassVar[dict[str, str | int]] = {}
    """Fields with one allowed value, such as `type`."""

    _NAMES: ClassVar[tuple[str, ...]]
    """All keys in wire order: shorter first, then by bytes. Positions below are positions in this one."""
    _HEAD: ClassVar[bytes]
    _WRITERS: ClassVar[tuple[tuple[bytes, str, Callable[[Any], bytes]], ...]]
    """Key (after the constants that sort before it), attribute, encoder of the value."""
    _END: ClassVar[bytes]
    """The constants that sort after every field."""
    _READERS: ClassVar[tuple[tuple[int, Callable[[Any], Any]], ...]]
    """Position and conversion of the values that need one."""
    _CONSTANTS: ClassVar[tuple[tuple[int, str | int], ...]]
    _ORDER: ClassVar[Callable[[list[Any]], tuple[Any, ...]]]
    """Picks the fields, in the order of the dataclass."""

    def __init_subclass__(cls) -> None:
        hints = cls.__annotations__
        cls.KINDS = {
            name.removesuffix("_"): hint.__metadata__[0]
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }
        cls._NAMES = names = tuple(sorted([*cls.KINDS, *cls.CONSTANTS], key=key_order))
        writers, key = [], b""
        for name in names:
            key += encode_text(name)
            if name in cls.CONSTANTS:
                key += encode(cls.CONSTANTS[name])
            else:
                writers.append((key, name if name in hints else name + "_", cls.KINDS[name].encode))
                key = b""
        cls._HEAD, cls._WRITERS, cls._END = map_head(len(names)), tuple(writers), key
        readers = [(names.index(name), kind.reader()) for name, kind in cls.KINDS.items()]
        cls._READERS = tuple((at, read) for at, read in readers if read)
        cls._CONSTANTS = tuple((names.index(name), value) for name, value in cls.CONSTANTS.items())
        cls._ORDER = itemgetter(*map(names.index, cls.KINDS)) if cls.KINDS else tuple

    def encode(self) -> bytes:
        """Check every field and give canonical dag-cbor. Raises `MalformedNode` naming the field."""
        parts = [self._HEAD]
        name = ""
        try:
            for key, name, encode_value in self._WRITERS:
                parts.append(key)
                parts.append(encode_value(getattr(self, name)))
        except (ValueError, TypeError, AttributeError) as error:
            raise _in_field(name.removesuffix("_"), error) from error
        parts.append(self._END)
        return b"".join(parts)

    @classmethod
    def from_item(cls, item: Any) -> Self:
        """Read a parsed map that must hold exactly the fields of this class. Raises `MalformedNode`."""
        if type(item) is not dict:
            raise wrong("a map", item)
        if tuple(item) != cls._NAMES:
            raise cls._wrong_keys(item)
        values, at = list(item.values()), 0
        try:
            for at, constant in cls._CONSTANTS:
                if values[at] != constant:
                    raise wrong(repr(constant), values[at])
            for at, read in cls._READERS:
                values[at] = read(values[at])
        except (ValueError, TypeError) as error:
            raise _in_field(cls._NAMES[at], error) from error
        return cls(*cls._ORDER(values))

    @classmethod
    def _wrong_keys(cls, item: dict[Any, Any]) -> Corrupt:
        unknown, missing = sorted(map(str, item.keys() - {*cls._NAMES})), sorted({*cls._NAMES} - item.keys())
        if not unknown and not missing:
            return not_canonical()
        word, field = ("unknown", unknown[0]) if unknown else ("missing", missing[0])
        return MalformedNode(f"{word} field {field!r:.60}", field=field[:60])


def _in_field(name: str, error: Exception) -> MalformedNode:
    """Say in which field an error arose; nested records add their names from the inside out."""
    data: dict[str, Any] = dict(error.data) if isinstance(error, Corrupt) else {}
    data["field"] = f"{name}.{data['field']}" if "field" in data else name
    data["reason"] = data.get("reason", str(error))
    return MalformedNode(f"field {data['field']!r}: {data['reason']}", **data)


class Nested(Kind):
    """The kind of a field that holds a `Record`."""

    def __init__(self, record: type[Record]) -> None:
        self.record = record

    def read(self, item: Any) -> Record:  # noqa: D102
        return self.record.from_item(item)

    def encode(self, value: Record) -> bytes:  # noqa: D102
        if type(value) is not self.record:
            raise wrong(f"a {self.record.__name__}", value)
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
        """Read a node from what `dagcbor.parse` gave for `data`; prove that `data` is its canonical form."""
        try:
            node = cls.from_item(item)
        except MalformedNode:
            if type(item) is dict and type(version := item.get("version")) is int and version > 1:
                raise UnsupportedFormat(
                    f"{cls.TYPE} version {version}, this program reads version 1",
                    hint="a newer cyberkv may read it",
                    field="version",
                ) from None
            raise
        check_canonical(data, node.encode())
        return node
