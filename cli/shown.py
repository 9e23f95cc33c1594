"""What `serve` shows: the published part of a home, CAR files, and the pages over both."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .chat_server import beside
from .context import Session
from .models import find_codec
from .output import remark
from .progress import bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import ASGIApp

    from ..cybergraph.cid import Buffer
    from ..cybergraph.gateway import Content
    from ..cybergraph.gateway.carcontent import CarContent
    from ..cybergraph.gateway.door import Door
    from ..cybergraph.gateway.metrics import Metrics
    from ..cybergraph.nodes import Model


def published(session: Session, *, records: bool = False) -> "Content":
    """Give what is public in the home; `records` where something else writes into it. Raises `NotFound` without one."""
    from ..cybergraph.gateway import Published

    session.require_home()
    if os.access(session.home / "store", os.W_OK):
        session.open_to_write()
        if not records:
            session.store.writers.close()  # it takes damaged blocks out and puts nothing in: `gc` need not wait for it
    return Published(session.store, session.index)


def open_car(session: Session, path: Path) -> "CarContent":
    """Open a CAR file; what is wrong with it is said on stderr. Raises `Corrupt` for what is none."""
    from ..cybergraph.gateway.carcontent import CarContent

    with bar(session, f"reading {path.name}") as progress:
        content = CarContent(path, progress)
    if content.index.bad_end is not None:
        remark(session, f"{content.index.bad_end}; what stands before it is served")
    if content.index.left_out:
        remark(session, f"{path}: {content.index.left_out} blocks are too large or cannot be checked: not served")
    return content


def counted(contents: "list[Content]", metrics: "Metrics") -> "Content":
    """Put contents together, the first of which comes first, and count what is read of them."""
    from ..cybergraph.gateway import Several
    from ..cybergraph.gateway.metrics import CountedContent

    return CountedContent(Several(contents), metrics)


def application(
    session: Session, content: "Content", metrics: "Metrics", door: "Door | None", names: "Iterable[str]",
    chat: "ASGIApp | None",
) -> "ASGIApp":  # fmt: skip
    """Put gateway, door, pages, limits and counters together over a content, for a server known by `names`.

    `chat` answers what lies under `/v1/`.
    """
    from ..cybergraph.gateway import build_app
    from ..cybergraph.gateway.front import guarded
    from ..cybergraph.gateway.pages import Lookups, Pages

    pages = Pages(content if door is None else door.outside, Lookups(text=partial(find_codec, session), norms=_norms))
    gateway: ASGIApp = build_app(content, pages, door)
    return guarded(gateway if chat is None else beside(chat, gateway), content, metrics, names)


def _norms(model: "Model", leaves: "Sequence[Buffer]") -> list[list[list[float]]]:
    from ..runtime.norms import block_norms  # only a page that shows them needs numpy

    return block_norms(model, leaves)
