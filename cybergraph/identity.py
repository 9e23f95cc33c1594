"""Model identity: two runs may share KV only if every axis of their `Model` nodes agrees.

>>> from dataclasses import replace
>>> from .nodes import Rope
>>> rope = Rope(base="10000.0", scaling=(), rotary_dims=64, convention="half")
>>> diff(rope, replace(rope, base="500000.0"))
[Difference(field='base', a='10000.0', b='500000.0')]
>>> digest(b"weights")
'blake3:3edc5c4a5df8c79ef4f8dbdc373cd21ca041ccf39fe5693250d004092094dc4a'
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import NamedTuple

from blake3 import blake3

from .cid import Buffer, Cid
from .errors import IdentityMismatch
from .nodes import Model, Record


class Difference(NamedTuple):
    """One axis on which two identities disagree."""

    field: str
    """Wire name; a dot leads into a nested record (`rope.base`)."""
    a: object
    b: object


def digest(data: Buffer | Iterable[Buffer]) -> str:
    """Hash one input of an identity, whole or in pieces, and give the text the identity holds."""
    hasher = blake3()
    for piece in [data] if isinstance(data, bytes | bytearray | memoryview) else data:
        hasher.update(piece)
    return f"blake3:{hasher.hexdigest()}"


def diff(a: Record, b: Record) -> list[Difference]:
    """List every axis on which two records of one type differ, in the order of their fields."""
    found = []
    for field in fields(a):  # type: ignore[arg-type]
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(ours, Record) and isinstance(theirs, Record):
            found += [each._replace(field=f"{field.name}.{each.field}") for each in diff(ours, theirs)]
        elif ours != theirs:
            found.append(Difference(field.name, ours, theirs))
    return found


def require_same(expected: Model, got: Model, of: Cid | None = None) -> None:
    """Check that two identities agree; `of` is the conversation that was made with the second.

    Raises `IdentityMismatch` naming it and the first axis with both values.
    """
    if differences := diff(expected, got):
        first = differences[0]
        raise IdentityMismatch(
            f"{'' if of is None else f'{of} is of another model: '}models differ in {first.field!r}: "
            f"expected {first.a!r:.80}, got {first.b!r:.80}",
            hint="KV of another model cannot be reused; record it again with this model",
            field=first.field, expected=first.a, got=first.b, **({} if of is None else {"cid": str(of)}),
        )  # fmt: skip
