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
from .models import choose_model
from .names import name_of_head, slug, unique
from .recording import load_engine
from .trust import require_usable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..runtime.live import Live

_LEAST_KEY_CHARS = 16


class HomeRecorder:
    """Names and roots in a home, for turns that come over HTTP."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, ref: str) -> Cid:
        """Give the root that a reference means. Raises `NameNotFound`, `BadReference`, `Untrusted`."""
        root = resolve_root(ref, self._session.index, self._session.store)
        require_usable(self._session, root)
        return root

    def name_for(self, ref: str | None, text: str) -> str:
        """Give the name that goes on, else a new one made of a text."""
        index = self._session.index
        if ref is not None and (name := name_of_head(index, ref, self.find(ref))) is not None:
            return name
        return unique(index, slug(text))

    def save(self, live: "Live", name: str, parent: Cid | None) -> Cid:
        """Write a root and make it the head of a name."""
        from ..runtime.checkpoint import checkpoint

        session, created = self._session, self._session.now()
        fork_at = None
        if parent is not None:
            before = load_root(session.store, parent)
            heads = {head.name: head.root for head in session.index.heads()}
            parent, fork_at = (before.parent, before.fork_at) if heads.get(name) == parent else (parent, before.length)
        root = checkpoint(live, title=name, created=created, parent=parent, fork_at=fork_at)
        session.index.set_head(name, root, created)
        return root


@contextmanager
def chatting(session: Session, model: str | None, key_file: Path | None, host: str) -> "Iterator[ASGIApp]":
    """Load a model and give the application that answers under `/v1/` at `host`, for as long as the `with` lasts.

    Effects: makes the home if there is none; takes seconds. Raises as `run` does for a model that is not there.
    """
    record = choose_model(session, model, None)
    key = None if key_file is None else _read_key(key_file)
    session.create_home()
    from ..cybergraph.gateway.front import is_near
    from ..runtime.batching.front import Front
    from ..runtime.serving.app import Offer, build_chat_app
    from ..runtime.serving.turns import Turns

    engine, codec = load_engine(session, record)
    with Front(engine) as front:
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


def beside(chat: "ASGIApp", gateway: "ASGIApp") -> "ASGIApp":
    """Answer `/v1/…` by the one application and everything else by the other."""

    async def either(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await (chat if scope["path"].startswith("/v1/") else gateway)(scope, receive, send)

    return either


def _read_key(path: Path) -> str:
    """Read the key that clients have to show. Raises `Refused` for one that is short or that others can read."""
    if path.stat().st_mode & 0o077:
        raise Refused(f"{path} can be read by others", hint=f"chmod 600 {path}", path=str(path))
    key = path.read_text(encoding="utf-8").strip()
    if len(key) < _LEAST_KEY_CHARS or not key.isascii() or " " in key:
        raise Refused(
            f"the key in {path} must be {_LEAST_KEY_CHARS} or more letters and digits without spaces",
            hint="`openssl rand -hex 24 > FILE` makes one",
            path=str(path),
        )
    return key
