"""What a request asks for: the rules of the path and trustless gateway specifications, apart from any bytes.

>>> from starlette.datastructures import QueryParams
>>> wanted = negotiate(QueryParams("format=car&dag-scope=block"), "application/vnd.ipld.raw")
>>> wanted.forms, wanted.car.scope
(('car',), 'block')
>>> negotiate(QueryParams(), "text/html, application/json;q=0.5, */*;q=0.1").choose("dag-cbor", pages=False)
'json'
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from starlette.datastructures import QueryParams

from .cars import CarOptions, car_options
from .refusal import refuse

Form = Literal["raw", "car", "dag-cbor", "dag-json", "cbor", "json", "html", "file"]
"""A form of answer. `file` is the block as it is, under the type of its codec: what a request without a wish gets."""

TYPES: Final[dict[Form, str]] = {
    "raw": "application/vnd.ipld.raw", "car": "application/vnd.ipld.car",
    "dag-cbor": "application/vnd.ipld.dag-cbor", "dag-json": "application/vnd.ipld.dag-json",
    "cbor": "application/cbor", "json": "application/json", "file": "application/octet-stream",
}  # fmt: skip
_NAMES: Final[dict[str, Form]] = {form: form for form in TYPES if form != "file"}
_BY_TYPE: Final[dict[str, Form]] = {
    **{TYPES[form]: form for form in _NAMES.values()},
    "text/html": "html", "*/*": "file", "application/*": "file", "application/octet-stream": "file",
}  # fmt: skip
_ELSEWHERE: Final = {
    "tar": "application/x-tar", "ipns-record": "application/vnd.ipfs.ipns-record",
}  # fmt: skip
"""Forms for UnixFS and for mutable names, of which there are none here."""

NODES: Final = frozenset({"dag-cbor", "dag-json"})
"""Codecs of nodes that are read, gone through by path and turned into one another."""
_CODECS: Final[dict[Form, frozenset[str]]] = {
    "dag-cbor": NODES, "dag-json": NODES, "cbor": NODES | {"cbor"}, "json": NODES | {"json"}, "html": NODES,
    "file": NODES | {"cbor", "json", "raw"},
}  # fmt: skip
"""Which codecs can be answered in a form; in the forms that are not here, all."""
_BY_CODEC: Final[dict[str, Form]] = {"dag-cbor": "dag-cbor", "dag-json": "dag-json", "cbor": "cbor", "json": "json"}

HELP: Final = (
    "This is an IPFS gateway. Its answers are bytes that you can check yourself:\n"
    "  ?format=raw                  one block                 (or Accept: application/vnd.ipld.raw)\n"
    "  ?format=car                  a whole graph             (or Accept: application/vnd.ipld.car)\n"
    "  ?format=car&dag-scope=block  one block as a CAR\n"
    "  ?format=dag-json             a node in readable form   (or dag-cbor, json, cbor)\n"
)


@dataclass(frozen=True)
class Wanted:
    """One request that can be answered for some block."""

    forms: tuple[Form, ...]
    """Forms that will do, the best first."""
    named: bool
    """The URL names the form."""
    accepted: tuple[Form, ...]
    """What the Accept header names among the forms that have a name, whatever the URL says."""
    car: CarOptions

    def choose(self, codec: str, *, pages: bool) -> Form:
        """Give the best form in which a block of `codec` can be answered. Raises `HTTPException` 406."""
        for form in self.forms:
            if codec in _CODECS.get(form, {codec}) and (pages or form != "html"):
                return _BY_CODEC.get(codec, form) if form == "file" else form
        raise refuse(406, f"a {codec} block has no such form here.\n{HELP}")

    def says_location(self, form: Form) -> bool:
        """Whether the answer should name its own URL: where the Accept header chose, or asked for something else."""
        return form in _NAMES and bool(self.accepted) and (not self.named or self.accepted[0] != form)


def negotiate(query: QueryParams, accept: str) -> Wanted:
    """Read the wishes of a request. `format` in the query wins over Accept. Raises `HTTPException` 400 or 406."""
    named = query.get("format")
    if named in _ELSEWHERE:
        raise refuse(400, f"nothing here has the form {named}.\n{HELP}")
    if named is not None and named not in _NAMES:
        raise refuse(406, f"no such format here.\n{HELP}")
    listed = sorted(_listed(accept), key=lambda entry: -entry[1])  # stable: of equals the first
    kinds = [(_BY_TYPE[media_type], parameters) for media_type, _, parameters in listed if media_type in _BY_TYPE]
    if named is None and not kinds and any(media_type in _ELSEWHERE.values() for media_type, _, _ in listed):
        raise refuse(400, f"nothing here has this form.\n{HELP}")
    forms = (_NAMES[named],) if named is not None else tuple(form for form, _ in kinds) or ("file",)
    if "html" in forms and "file" not in forms:  # where there is no page it is one more type that is not known here
        forms = (*forms, "file")
    parameters = next((parameters for form, parameters in kinds if form == "car"), {})
    return Wanted(
        forms=forms,
        named=named is not None,
        accepted=tuple(form for form, _ in kinds if form in _NAMES),
        car=car_options(query, parameters) if "car" in forms else CarOptions(),
    )


def prefers_page(accept: str) -> bool:
    """Say whether a page is what the reader would like best."""
    best = max(_listed(accept), key=lambda entry: entry[1], default=None)
    return best is not None and best[0] == "text/html"


def _listed(accept: str) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Give each media type of an Accept header that is wanted at all, its weight and its parameters."""
    for entry in accept.split(","):
        media_type, *rest = (part.strip() for part in entry.split(";"))
        parameters = {
            key.strip().lower(): value.strip(' "') for key, _, value in (part.partition("=") for part in rest)
        }
        if media_type and (weight := _weight(parameters.pop("q", "1"))) > 0:
            yield media_type.lower(), weight, parameters


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
