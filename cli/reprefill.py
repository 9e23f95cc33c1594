"""`publish --reprefill`: compute the public spans of a conversation again, as if the private ones had never been."""

from collections.abc import Sequence

from ..cybergraph.chain import load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.policy import Span
from .context import Session
from .identities import access_folder
from .interrupt import holdable, stoppable
from .models import find_codec
from .names import ANY, slug
from .output import remark
from .recording import start
from .text import count


def reprefill(session: Session, root_cid: Cid, spans: Sequence[Span]) -> str:
    """Record the public tokens alone as a new conversation, all of it public, and give its name.

    Every block from the first private token on is computed anew and so has another CID. The name is made of the public
    text: that of the whole may have private words. Interrupted, nothing is recorded. Raises as `recording.start`.
    """
    root = load_root(session.store, root_cid)
    tokens = tokens_of(session.store, root)
    public = [token for span in spans if span.visibility == "public" for token in tokens[span.start : span.end]]
    codec = find_codec(session, root.model)
    base = ANY if codec is None else slug(codec.decode(public))
    recording = start(session, model=str(root.model), name=None, from_ref=None, base=base)
    with stoppable() as stop:
        recording.append_tokens(public, stop)
    with holdable() as change:
        change.hold()
        recording.save()
        access_folder(session).change_marks(lambda marks: marks.mark(public, 0, len(public), "public"))
        remark(session, f"recorded {count(len(public), 'token')} without the private ones as {recording.name}")
    return recording.name
