"""The options of a CAR answer: `dag-scope`, `entity-bytes`, and the parameters of its media type."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from starlette.datastructures import QueryParams

from .refusal import refuse

Scope = Literal["block", "all"]

# Nothing served here is UnixFS of more than one block, and for everything else `entity` is the same as `block`.
_SCOPES: Final[dict[str, Scope]] = {"block": "block", "entity": "block", "all": "all"}
_RANGE: Final = re.compile(r"(-?[0-9]{1,18}):(\*|-?[0-9]{1,18})")


@dataclass(frozen=True)
class CarOptions:
    """Which CAR is wanted. Version 1, depth first: there is no other."""

    scope: Scope = "all"
    dups: bool = False
    """Whether a block that is linked twice is sent twice."""
    entity_bytes: str = ""
    """`from:to` as it was asked, or nothing."""

    @property
    def content_type(self) -> str:
        """The Content-Type of the answer, with every parameter that is known."""
        return f"application/vnd.ipld.car; version=1; order=dfs; dups={self._dups}"

    @property
    def tag(self) -> str:
        """What tells these options from others in an entity tag."""
        return f"{self.scope}.{self._dups}" + (f".{self.entity_bytes}" if self.entity_bytes else "")

    @property
    def query(self) -> str:
        """The part of a URL that asks for the same."""
        asked = f"&entity-bytes={self.entity_bytes}" if self.entity_bytes else ""
        return f"&dag-scope={self.scope}&car-dups={self._dups}{asked}"

    @property
    def _dups(self) -> str:
        return "yn"[not self.dups]

    def check_bytes(self, size_bytes: int) -> None:
        """Refuse a range of bytes of which an entity of `size_bytes` has nothing. Raises `HTTPException` 400."""
        if not (found := _RANGE.fullmatch(self.entity_bytes)):
            return
        first, last = int(found[1]), size_bytes - 1 if found[2] == "*" else int(found[2])
        if first >= size_bytes > 0 or last < -size_bytes:
            raise refuse(400, f"the block has {size_bytes} bytes, and entity-bytes lies outside of them")


def car_options(query: QueryParams, parameters: Mapping[str, str]) -> CarOptions:
    """Read the options from the URL and from the parameters of the media type; the URL wins.

    Raises `HTTPException` 400 or 406.
    """

    def option(name: str, default: str) -> str:
        return query.get(f"car-{name}") or parameters.get(name, default)

    entity_bytes = query.get("entity-bytes", "")
    if entity_bytes and not _RANGE.fullmatch(entity_bytes):
        raise refuse(400, "entity-bytes is from:to, and to may be *")
    scope = query.get("dag-scope", "entity" if entity_bytes else "all")
    if scope not in _SCOPES:
        raise refuse(400, "dag-scope is block, entity or all")
    version, order, dups = option("version", "1"), option("order", "dfs"), option("dups", "n")
    if version != "1" or order not in ("dfs", "unk") or dups not in ("y", "n"):
        raise refuse(406, "CAR answers have version=1, order=dfs and dups=y or dups=n")
    return CarOptions(_SCOPES[scope], dups=dups == "y", entity_bytes=entity_bytes)
