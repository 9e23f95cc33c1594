"""What a person types to name something: a conversation's name, a CID, or the first letters of one."""

from .chain import read_receipt
from .cid import TEXT_CHARS, Cid
from .errors import BadReference, NameNotFound
from .index import Index
from .store.base import Store

LEAST_PREFIX_CHARS = 8
"""The first seven letters of a CID are the same for all nodes, or for all leaves."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_SHOWN = 10
_LINK = "cyberkv://"


def resolve(ref: str, index: Index, store: Store) -> Cid:
    """Give the CID that `ref` means: a whole CID, the head of a name, or a unique prefix of a CID known here.

    A whole CID is only read, not looked up. No name looks like a CID, so none hides one. Prefixes are looked for among
    the roots in the index and the nodes and leaves in the store. Raises `NameNotFound`; `BadReference` listing the
    candidates if several fit; `MalformedCid` for a CID with a wrong letter.
    """
    if ref.startswith(_LINK):
        raise BadReference("a share link is for `cyberkv fetch` alone", hint="afterwards, use the name it was given")
    if len(ref) == TEXT_CHARS and ref.startswith("b"):
        return Cid.parse(ref)
    try:
        return index.head(ref).root
    except (NameNotFound, BadReference):
        candidates = _candidates(ref, index, store)
    if not candidates:
        raise NameNotFound(
            f"no name or CID here fits {ref!r:.100}",
            hint=f"see `cyberkv list`; a CID may be cut to {LEAST_PREFIX_CHARS} letters or more",
            ref=ref[:100],
        )
    if len(candidates) > 1:
        texts = [str(cid) for cid in candidates]
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        raise BadReference(
            f"{ref!r} fits {len(texts)} CIDs: {', '.join(texts[:_SHOWN])}{more}",
            hint="give more letters", ref=ref, candidates=texts[:_SHOWN],
        )  # fmt: skip
    return candidates[0]


def resolve_root(ref: str, index: Index, store: Store) -> Cid:
    """Give the conversation that `ref` means: that of a receipt, else what `resolve` gives. Raises as `resolve`."""
    cid = resolve(ref, index, store)
    receipt = read_receipt(store, cid)
    return cid if receipt is None else receipt.root


def _candidates(ref: str, index: Index, store: Store) -> list[Cid]:
    if len(ref) < LEAST_PREFIX_CHARS or ref[0] != "b" or any(char not in _ALPHABET for char in ref):
        return []
    number = 0
    for char in ref[1:]:
        number = number << 5 | _ALPHABET.index(char)
    bits = 5 * (len(ref) - 1)
    prefix = (number >> bits % 8).to_bytes(bits // 8, "big")
    return sorted(cid for cid in {*store.cids(prefix), *index.roots()} if str(cid).startswith(ref))
