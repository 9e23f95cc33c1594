"""What a request asks for: the rules of the trustless gateway specification, apart from any bytes.

>>> from starlette.datastructures import QueryParams
>>> negotiate(QueryParams("format=car&dag-scope=block"), "application/vnd.ipld.raw")
Wanted(format='car', scope='block', dups=False, by_accept=False)
"""

from dataclasses import dataclass
from typing import Final, Literal

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

Format = Literal["raw", "car"]
Scope = Literal["block", "all"]

TYPES: Final[dict[Format, str]] = {"raw": "application/vnd.ipld.raw", "car": "application/vnd.ipld.car"}
_FORMATS: Final = {media_type: name for name, media_type in TYPES.items()}
_NAMES: Final[dict[str, Format]] = {name: name for name in TYPES}
# Nothing served here is UnixFS, and for everything else the specification makes `entity` the same as `block`.
_SCOPES: Final[dict[str, Scope]] = {"block": "block", "entity": "block", "all": "all"}

HELP: Final = (
    "This is a trustless IPFS gateway. It answers with bytes that you can check yourself:\n"
    "  ?format=raw                  one block      (or Accept: application/vnd.ipld.raw)\n"
    "  ?format=car                  a whole graph  (or Accept: application/vnd.ipld.car)\n"
    "  ?format=car&dag-scope=block  one block as a CAR\n"
)


@dataclass(frozen=True)
class Wanted:
    """One accepted request."""

    format: Format
    scope: Scope
    dups: bool
    """Whether a block that is linked twice is sent twice."""
    by_accept: bool
    """The format came from the Accept header alone, so the answer names the URL that means the same."""

    @property
    def content_type(self) -> str:
        """The Content-Type of the answer, with every parameter that is known."""
        if self.format == "raw":
            return TYPES["raw"]
        return f"{TYPES['car']}; version=1; order=dfs; dups={'y' if self.dups else 'n'}"

    def etag(self, cid: str) -> str:
        """The entity tag: one for each form in which a block can be answered."""
        return f'"{cid}.raw"' if self.format == "raw" else f'W/"{cid}.car.{self.scope}.{"yn"[not self.dups]}"'


def refuse(status: int, reason: str, **more: str) -> HTTPException:
    """Build a plain-text refusal, with `more` headers."""
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", **more}
    return HTTPException(status, f"{status}: {reason}\n", headers)


def negotiate(query: QueryParams, accept: str) -> Wanted:
    """Decide what to answer with. `format` in the query wins over Accept. Raises `HTTPException` 400 or 406."""
    named = query.get("format")
    if named is not None and named not in _NAMES:
        raise refuse(406, f"no such format here.\n{HELP}")
    preferred, parameters, others = _preferred(accept)
    chosen = _NAMES[named] if named is not None else preferred
    if chosen is None:
        raise refuse(406 if others else 400, f"no format asked for that this gateway has.\n{HELP}")
    if chosen != preferred:
        parameters = {}
    if chosen == "raw":
        return Wanted("raw", "block", dups=False, by_accept=named is None)

    def option(name: str, default: str) -> str:
        return query.get(f"car-{name}") or parameters.get(name, default)

    scope = query.get("dag-scope", "entity" if "entity-bytes" in query else "all")
    if scope not in _SCOPES:
        raise refuse(400, "dag-scope is block, entity or all")
    version, order, dups = option("version", "1"), option("order", "dfs"), option("dups", "n")
    if version != "1" or order not in ("dfs", "unk") or dups not in ("y", "n"):
        raise refuse(406, "CAR answers have version=1, order=dfs and dups=y or dups=n")
    return Wanted("car", _SCOPES[scope], dups=dups == "y", by_accept=named is None)


def _preferred(accept: str) -> tuple[Format | None, dict[str, str], bool]:
    """The best format of an Accept header, its parameters, and whether only unknown types were named."""
    best: Format | None = None
    best_weight, best_parameters, others = 0.0, dict[str, str](), False
    for entry in accept.split(","):
        media_type, *rest = (part.strip() for part in entry.split(";"))
        parameters = {
            key.strip().lower(): value.strip(' "') for key, _, value in (part.partition("=") for part in rest)
        }
        found = _FORMATS.get(media_type.lower())
        others |= found is None and media_type not in ("", "*/*", "application/*")
        weight = _weight(parameters.pop("q", "1"))
        if found is not None and weight > best_weight:
            best, best_weight, best_parameters = found, weight, parameters
    return best, best_parameters, others


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
