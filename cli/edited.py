"""A conversation as it is before an edit: what its home says of its spans, and of copies elsewhere."""

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ..cybergraph.chain import block_cids, load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.nodes import Conversation, Model
from ..cybergraph.refs import resolve_root
from .context import Session
from .identities import access_folder
from .mark import RANGE
from .names import name_of_head

if TYPE_CHECKING:
    from ..runtime.edits.folder import EditsFolder
    from ..runtime.edits.receipt import Cut
    from ..runtime.edits.spans import Ledger, Span


class Named(NamedTuple):
    """What a person wrote to name a part of a conversation."""

    cut: "Cut"
    span: "Span | None"
    """None for a range of tokens."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A conversation with its spans, as it was before the edit."""

    session: Session
    ref: str
    cid: Cid
    root: Conversation
    name: str | None
    """The name that ends at this root."""
    tokens: list[int]
    folder: "EditsFolder"
    ledger: "Ledger"

    @classmethod
    def read(cls, session: Session, ref: str) -> "Edited":
        """Read what REF names. Raises as `resolve_root` and `load_root`, and `Corrupt`."""
        from ..runtime.edits.folder import EditsFolder

        cid = resolve_root(ref, session.index, session.store)
        root = load_root(session.store, cid)
        tokens, folder = tokens_of(session.store, root), EditsFolder(session.home / "edits")
        name = name_of_head(session.index, ref, cid)
        return cls(session, ref, cid, root, name, tokens, folder, folder.ledger(tokens))

    @property
    def model(self) -> Model:
        """The identity of the model."""
        return Model.decode(self.session.store.get(self.root.model))

    def named(self, text: str) -> Named:
        """Read START:END, or the name or id of a span. Raises `NameNotFound`, and a usage error."""
        from ..runtime.edits.receipt import Cut

        if ":" in text:
            start, end = RANGE.convert(text, None, None)
            return Named(Cut(start, len(self.tokens) if end is None else end), None)
        span = self.ledger.find(text)
        return Named(span.cut, span)

    def elsewhere(self, start: int) -> tuple[str, ...]:
        """Name the copies of what stands at `start`, in its context, that an edit does not reach."""
        from ..runtime.edits.elsewhere import copies

        given = self._given() if (self.session.home / "access").is_dir() else []
        store, index, root = self.session.store, self.session.index, self.root
        at = start // root.block_size
        block = next(islice(block_cids(store, root), at, None), None)
        return copies(
            store, index, root.model, self.tokens[: start + 1], block=block, name=self.name, given=given
        )  # fmt: skip

    def _given(self) -> list[str]:
        """Name what was published for some, where, and for how many."""
        found = []
        for lineage in access_folder(self.session).lineages():
            if lineage.name in (self.name, str(self.cid)):
                roots = [*([] if lineage.last is None else [lineage.last.root]), *lineage.earlier]
                found += [f"given to {len(lineage.readers)} readers as {root}" for root in roots]
                found += [f"pinned on {pin.node} as {pin.name}" for pin in lineage.pins]
        return found
