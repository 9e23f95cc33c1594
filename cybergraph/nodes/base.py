"""What every node type shares: a frozen dataclass that is a view of canonical bytes.

A class states each field once, as a dataclass field annotated with its kind. The name on the wire is the name
of the field (a Python keyword gets a trailing underscore as an attribute). The order of dag-cbor, the
constant `type` and `version`, both directions and every check follow from that.
"""

from collections.abc import Callable
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

    _ATTRIBUTES: ClassVar[dict[str, str]]
    """Attribute of each field by its wire name."""
    _NAMES: ClassVar[tuple[str, ...]]
    """All keys in wire order: shorter first, then by bytes."""
    _CONSTANTS: ClassVar[tuple[tuple[int, str | int], ...]]
    """Position in wire order and value of each constant."""
    _to_bytes: ClassVar[Callable[[Any], bytes]]
    _from_values: ClassVar[Callable[[list[Any]], Any]]
    """Takes the values in wire order."""

    def __init_subclass__(cls) -> None:
        hints = {name: hint for name, hint in cls.__annotations__.items() if hasattr(hint, "__metadata__")}
        cls._ATTRIBUTES = {name.removesuffix("_"): name for name in hints}
        cls.KINDS = {name.removesuffix("_"): hint.__metadata__[0] for name, hint in hints.items()}
        cls._NAMES = tuple(sorted([*cls.KINDS, *cls.CONSTANTS], key=key_order))
        cls._CONSTANTS = tuple((cls._NAMES.index(name), value) for name, value in cls.CONSTANTS.items())
        cls._to_bytes = _writer(cls)
        cls._from_values = _reader(cls)

    def encode(self) -> bytes:
        """Check every field and give canonical dag-cbor. Raises `MalformedNode` naming the field."""
        try:
            return self._to_bytes()
        except (ValueError, TypeError, AttributeError) as error:
            names = self._ATTRIBUTES
            raise self._blame(error, lambda name, kind: kind.encode(getattr(self, names[name]))) from error

    @classmethod
    def from_item(cls, item: Any) -> Self:
        """Read a parsed map that must hold exactly the fields of this class. Raises `MalformedNode`."""
        if type(item) is not dict:
            raise wrong("a map", item)
        if tuple(item) != cls._NAMES:
            raise cls._wrong_keys(item)
        values = list(item.values())
        for at, constant in cls._CONSTANTS:
            if values[at] != constant:
                raise _in_field(cls._NAMES[at], wrong(repr(constant), values[at]))
        try:
            record: Self = cls._from_values(values)
        except (ValueError, TypeError) as error:
            raise cls._blame(error, lambda name, kind: kind.read(item[name])) from error
        return record

    @classmethod
    def _blame(cls, error: Exception, redo: Callable[[str, Kind], object]) -> Exception:
        """Find the field at which work failed, by doing it again field by field, and name it in the error."""
        for name, kind in cls.KINDS.items():
            try:
                redo(name, kind)
            except (ValueError, TypeError, AttributeError) as again:
                return _in_field(name, again)
        return error

    @classmethod
    def _wrong_keys(cls, item: dict[Any, Any]) -> Corrupt:
        unknown, missing = sorted(map(str, item.keys() - {*cls._NAMES})), sorted({*cls._NAMES} - item.keys())
        if not unknown and not missing:
            return not_canonical()
        word, field = ("unknown", unknown[0]) if unknown else ("missing", missing[0])
        return MalformedNode(f"{word} field {field!r:.60}", field=field[:60])


# A loop over the fields would cost more time than the work on them, so each class gets two one-line functions written
# out from its fields, as dataclasses do for `__init__`.


def _writer(cls: type[Record]) -> Callable[[Record], bytes]:
    """Make `lambda self: join((b"key of a", encode_a(self.a), ...))`, constants folded into the keys."""
    scope: dict[str, Any] = {"join": b"".join}
    parts, fixed = "", map_head(len(cls._NAMES))
    for name in cls._NAMES:
        fixed += encode_text(name)
        if name in cls.CONSTANTS:
            fixed += encode(cls.CONSTANTS[name])
        else:
            scope[f"encode_{name}"] = cls.KINDS[name].encode
            parts += f"{fixed!r}, encode_{name}(self.{cls._ATTRIBUTES[name]}), "
            fixed = b""
    made: Callable[[Record], bytes] = eval(f"lambda self: join(({parts}{fixed!r},))", scope)  # noqa: S307
    return made


def _reader(cls: type[Record]) -> Any:
    """Make `lambda cls, values: cls(values[2], read_b(values[0]), ...)`, a call only where a kind needs one."""
    scope: dict[str, Any] = {f"read_{name}": kind.read for name, kind in cls.KINDS.items()}
    values = {name: f"values[{cls._NAMES.index(name)}]" for name in cls.KINDS}
    parts = [
        value if type(cls.KINDS[name]).read is Kind.read else f"read_{name}({value})" for name, value in values.items()
    ]
    return classmethod(eval(f"lambda cls, values: cls({', '.join(parts)})", scope))  # noqa: S307


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
