"""Answers of one block: its bytes, or those of the same node in the other encoding, whole or in part."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..errors import Corrupt
from ..foreign import AnyCid
from ..ipld import ValueCodec, write_value
from .content import Content
from .negotiate import Form
from .ranges import part_of
from .refusal import refuse
from .resolve import read_node

_ENCODINGS: Final[dict[Form, ValueCodec]] = {
    "dag-cbor": "dag-cbor", "cbor": "dag-cbor", "dag-json": "dag-json", "json": "dag-json",
}  # fmt: skip


def answer_block(
    request: Request, content: Content, cid: AnyCid, size_bytes: int, form: Form, headers: dict[str, str]
) -> Response:
    """Answer with a block of `size_bytes` in a form, as the request's conditions and range have it.

    Raises `BlockNotFound`, `Corrupt`, and `HTTPException` 501 for a node that has no such form.
    """
    if not_modified(request, headers["Etag"]):
        return Response(status_code=304, headers=headers)
    as_it_is = _ENCODINGS.get(form, cid.codec) == cid.codec or form == cid.codec
    if request.method == "HEAD" and as_it_is:
        return Response(headers={**headers, "Content-Length": str(size_bytes)})
    body = content.get(cid)
    if not as_it_is:
        body = _converted(cid, body, _ENCODINGS[form])
    return _whole_or_part(request, body, headers)


def not_modified(request: Request, tag: str) -> bool:
    """Whether the reader says that it has the answer with this entity tag, or any."""
    tags = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    return "*" in tags or tag.removeprefix("W/") in tags


def _converted(cid: AnyCid, data: bytes, encoding: ValueCodec) -> bytes:
    value = read_node(cid, data)
    try:
        return write_value(encoding, value)
    except Corrupt as error:
        raise refuse(501, f"{cid} has no form in {encoding}: {error}") from error


def _whole_or_part(request: Request, body: bytes, headers: dict[str, str]) -> Response:
    asked = request.headers.get("range", "")
    if not asked or request.method != "GET" or request.headers.get("if-range", headers["Etag"]) != headers["Etag"]:
        return Response(body, headers=headers)
    part = part_of(asked, len(body))
    if part is None:
        raise refuse(416, "no such bytes in this block", **{"Content-Range": f"bytes */{len(body)}"})
    if part == slice(0, len(body)):
        return Response(body, headers=headers)
    where = f"bytes {part.start}-{part.stop - 1}/{len(body)}"
    return Response(body[part], 206, {**headers, "Content-Range": where})
