"""Access-controlled conversations: sealing before naming, grants, links, keys, and proofs of access."""

from .contentkey import ContentKey
from .grant import check_grant, check_grant_of, commits, make_grant, open_grant
from .identity import Identity, PublicIdentity
from .keyfile import is_locked, key_names, load_key, save_key
from .link import ShareLink
from .opened import OpenedTable
from .peer import SealedPeer
from .sealing import Sealing

__all__ = [
    "ContentKey", "Identity", "OpenedTable", "PublicIdentity", "SealedPeer", "Sealing", "ShareLink", "check_grant",
    "check_grant_of", "commits", "is_locked", "key_names", "load_key", "make_grant", "open_grant", "save_key",
]  # fmt: skip
