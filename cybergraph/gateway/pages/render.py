"""Templates to answers: everything foreign is escaped, and no page loads anything from elsewhere."""

import hashlib
import re
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from ...wording import count, preview, size
from ..blocks import not_modified

HERE: Final = Path(__file__).parent
STYLE: Final = (HERE / "style.css").read_bytes()
STYLE_TAG: Final = hashlib.sha256(STYLE).hexdigest()[:16]
SAFETY: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
GATEWAYS: Final = (
    ("ipfs.io", "https://ipfs.io/ipfs/"),
    ("dweb.link", "https://dweb.link/ipfs/"),
    ("inbrowser.link, which checks in the browser", "https://inbrowser.link/ipfs/"),
    ("a Kubo node on this machine", "http://127.0.0.1:8080/ipfs/"),
    ("IPLD Explorer", "https://explore.ipld.io/#/explore/"),
)
"""Where else a CID can be opened: links that a reader may follow, and nothing that a page loads."""
TITLE_CHARS: Final = 120
_SERVER: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]-]{1,255}")
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?Z")


def title(text: str) -> Markup:
    """Show a foreign title: one line, cut, set apart so that its direction does not reach beyond it."""
    shown = preview(text, TITLE_CHARS)
    return Markup("<bdi>{}</bdi>").format(shown) if shown else Markup("<i>untitled</i>")


def short(cid: object) -> Markup:
    """Show a CID by its ends, whole to whoever points at it."""
    text = str(cid)
    shown = text if len(text) <= 20 else f"{text[:8]}\u2026{text[-6:]}"
    return Markup('<code title="{}">{}</code>').format(text, shown)


def time(created: str) -> Markup:
    """Show a time that a node names."""
    if not (found := _TIME.fullmatch(created)):
        return escape(preview(created, 32) or "not said")
    return Markup('<time datetime="{}">{} {} UTC</time>').format(created, *found.groups())


_environment = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_environment.filters |= {
    "title": title, "short": short, "time": time, "size": size, "count": count, "number": "{:,}".format,
    "preview": preview,
}  # fmt: skip
_environment.globals |= {"style": f"/style.css?{STYLE_TAG}", "gateways": GATEWAYS}


def compile_templates() -> None:
    """Get all templates ready, once in a process: so that no reader waits for that."""
    for name in _environment.list_templates():
        _environment.get_template(name)


def page(request: Request, template: str, *, status: int = 200, **values: object) -> Response:
    """Fill a template in. The page depends on what is published now, so that caches have to ask each time."""
    body = _environment.get_template(template).render(values, status=status, server=_server(request)).encode()
    etag = f'"html.{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**SAFETY, "Cache-Control": "no-cache", "Etag": etag, "Vary": "Accept"}
    if status != 200:
        headers["Cache-Control"] = "no-store"
        del headers["Etag"]
    elif not_modified(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, "text/html; charset=utf-8")


def _server(request: Request) -> str:
    """Give the address by which the reader came here, for commands to copy."""
    url = f"{request.url.scheme}://{request.url.netloc}"
    return url if _SERVER.fullmatch(url) else "URL"


def style(request: Request) -> Response:
    """Give the stylesheet; under the address that pages name it by, it never changes."""
    forever = request.url.query == STYLE_TAG
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable" if forever else "no-cache",
        "Etag": f'"{STYLE_TAG}"',
        "X-Content-Type-Options": "nosniff",
    }
    if not_modified(request, headers["Etag"]):
        return Response(status_code=304, headers=headers)
    return Response(STYLE, headers=headers, media_type="text/css")
