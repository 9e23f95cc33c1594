"""`serve --chat`: the chat-completions protocol over the conversations of a home."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..cybergraph.chain import load_root
from ..cybergraph.cid import Cid
from ..cybergraph.errors import Refused
from ..cybergraph.refs import resolve_root
from .context import Session
from .device import Device
from .models import choose_model
from .names import keep_as, name_of_head, slug, unique
from .recording import load_engine
from .trust import require_usable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..cybergraph.gateway.metrics import Metrics
    from ..runtime.batching.front import Front
    from ..runtime.engine import Engine
    from ..runtime.live import Live
    from ..runtime.serving.book import Place
    from ..runtime.serving.turns import Opening

_LEAST_KEY_CHARS = 16
_MOST_KEY_BYTES = 1024


class HomeRecorder:
    """Names and roots in a home, for turns that come over HTTP."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, ref: str) -> Cid:
        """Give the root that a reference means. Raises `NameNotFound`, `BadReference`, `Untrusted`."""
        root = resolve_root(ref, self._session.index, self._session.store)
        require_usable(self._session, root)
        return root

    def name_of(self, ref: str, root: Cid) -> str | None:
        """Give the name that goes on from `root`, which was found as `ref`, if there is one."""
        return name_of_head(self._session.index, ref, root)

    def save(self, live: "Live", opening: "Opening") -> "Place":
        """Write a root and make it the head of a name.

        Where the conversation has gone on, was edited, locked or forgotten meanwhile, also by another program, its name
        stays with what it has become, and this turn gets a name of its own.
        """
        from ..runtime.checkpoint import checkpoint
        from ..runtime.serving.book import Place

        session, created, (text, place, parent) = self._session, self._session.now(), opening
        before = None if parent is None else load_root(session.store, parent)

        def write_for(name: str) -> Cid:
            if before is None:
                return checkpoint(live, title=name, created=created)
            goes_on = place is not None and name == place.name
            fork = (before.parent, before.fork_at) if goes_on else (parent, before.length)
            return checkpoint(live, title=name, created=created, parent=fork[0], fork_at=fork[1])

        base = slug(text)
        name, expected = (unique(session.index, base), None) if place is None else place
        return Place(*keep_as(session.index, name, write_for, created, expected=expected, base=base))


@contextmanager
def chatting(
    session: Session, model: str | None, key_file: Path | None, host: str, metrics: "Metrics", device: Device
) -> "Iterator[ASGIApp]":
    """Load a model and give the application that answers under `/v1/` at `host`, for as long as the `with` lasts.

    Blocks that are not in use, and those that waiting requests will use, take at most `device.host_bytes`.
    Effects: makes the home if there is none; takes seconds. Raises as `run` does for a model that is not there.
    """
    record = choose_model(session, model, None)
    key = None if key_file is None else _read_key(key_file)
    session.create_home()
    from ..cybergraph.gateway.front import is_near
    from ..runtime.batching.front import Front
    from ..runtime.serving.app import Offer, build_chat_app
    from ..runtime.serving.turns import Turns

    engine, codec = load_engine(session, record, device)
    if device.host_bytes is not None:
        engine.host_bytes = device.host_bytes
    with Front(engine) as front:
        _watch(metrics, engine, front)
        own = frozenset(("localhost", host.lower()))
        yield build_chat_app(
            Offer(
                turns=Turns(front, engine, codec, HomeRecorder(session)),
                model=record.name,
                model_cid=str(record.cid),
                now_s=session.now_s,
                new_id=lambda: secrets.token_hex(12),
                is_own=lambda request: is_near(request, own),
                key=key,
            )
        )


def _watch(metrics: "Metrics", engine: "Engine", front: "Front") -> None:
    """Show how many blocks came from where, and what came of those that were brought ahead."""
    from ..cybergraph.verdict import Tier

    moved, ahead = engine.residency.log.blocks, front.ahead
    metrics.watch("tier_l1_hits", "Blocks that came into use from host memory", lambda: moved[Tier.L1, Tier.L0])
    metrics.watch("tier_l2_hits", "Blocks that came into use from the store", lambda: moved[Tier.L2, Tier.L0])
    metrics.watch("host_used_bytes", "Host memory that holds blocks", lambda: engine.residency.shelf.used_host_bytes)
    if ahead is not None:
        metrics.watch("prefetched_bytes", "Brought to host memory ahead of use", lambda: ahead.tally.brought_bytes)
        metrics.watch("prefetch_used_bytes", "Of those, used", lambda: ahead.tally.used_bytes)
        metrics.watch("prefetch_wasted_bytes", "Of those, brought in vain", lambda: ahead.tally.wasted_bytes)


def beside(chat: "ASGIApp", gateway: "ASGIApp") -> "ASGIApp":
    """Answer `/v1/…` by the one application and everything else by the other."""

    async def either(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await (chat if scope["path"].startswith("/v1/") else gateway)(scope, receive, send)

    return either


def _read_key(path: Path) -> str:
    """Read the key that clients have to show. Raises `Refused` for one that is short or that others can read."""
    if path.stat().st_mode & 0o077:
        raise Refused(f"{path} can be read by others", hint=f"chmod 600 {path}", path=str(path))
    with path.open("rb") as file:
        data = file.read(_MOST_KEY_BYTES)
    key = data.decode("latin-1").strip()
    if len(key) < _LEAST_KEY_CHARS or len(data) == _MOST_KEY_BYTES or not all("!" <= letter <= "~" for letter in key):
        raise Refused(
            f"the key in {path} must be {_LEAST_KEY_CHARS} or more letters and digits without spaces",
            hint="`openssl rand -hex 24 > FILE` makes one",
            path=str(path),
        )
    return key
