"""Before anything becomes public: its text and its objects are shown, and somebody agrees."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..cybergraph.chain import load_root, tokens
from ..cybergraph.errors import CyberKVError, Refused
from .context import Session
from .models import find_codec
from .text import preview, size

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Conversation
    from ..cybergraph.transfer import PublishPlan

SHOWN_CHARS: Final = 2000
"""A longer text is shown by its two ends."""
TITLE_CHARS: Final = 80
FOREVER: Final = (
    "This cannot be undone: whoever fetches a block may keep it and pass it on. Keys and values give the text back, "
    "even to somebody who has nothing else."
)


def check_free(path: Path, *roots: "Cid") -> None:
    """Refuse to write over anything but an earlier file of the same conversation, which has one of these roots."""
    from ..cybergraph.car import read_car
    from ..cybergraph.private import open_regular

    if not path.exists():
        return
    try:
        with open_regular(path) as present:
            same = read_car(present).roots in [(root,) for root in roots]
    except (CyberKVError, OSError):
        same = False
    if not same:
        raise Refused(
            f"{path} exists and holds something else", hint="choose another name, or move it away", path=str(path)
        )


def text_of(session: Session, recorded: "Cid", root: "Conversation") -> str | None:
    """Give the text of the public beginning `root` of a recorded conversation; None without its tokenizer."""
    codec = find_codec(session, root.model)
    if codec is None:
        return None
    return codec.decode(tokens(session.store, load_root(session.store, recorded))[: root.length])


def signed_by(key: bytes) -> str:
    """Say which Ed25519 key signs, and what that shows of whose it is."""
    return f"{key.hex()}, which is the same for all that this key signs"


def shown(plan: "PublishPlan", cid: "Cid", text: str | None, signer: str | None) -> Iterator[str]:
    """Give the lines that say what becomes public: the conversation `cid` of a plan, with its text.

    `signer` says in words which key signs it.
    """
    root = plan.conversation
    yield "This becomes readable by anyone, for good:"
    yield f"  root      {cid}"
    if signer is not None:
        yield f"  signed by {signer}"
    yield f"  title     {preview(root.title, TITLE_CHARS) or 'none'}, recorded {root.created or 'at an unknown time'}"
    yield f"  model     {root.model}"
    if root.approx is not None:
        yield f"  approx    {root.approx}"
    if text is None:
        yield f"  text      all {root.length:,} tokens; its model is not registered here, so it cannot be shown"
    else:
        yield f"  text      {root.length:,} tokens, {len(text):,} characters:"
        yield from (f"  | {line}" for line in _excerpt(text).splitlines())
    for kind, sums in count_kinds(plan).items():
        yield f"  {kind:<9} {sums['count']:>9,}  {size(sums['bytes'])}"
    yield f"  objects   {plan.blocks:>9,}  {size(plan.bytes)} in all, {plan.public_already:,} of them public already"
    for withheld in plan.withheld:
        yield f"  withheld  {withheld}"
    yield FOREVER


def count_kinds(plan: "PublishPlan") -> dict[str, dict[str, int]]:
    """Count the blocks of each kind and their bytes, in writing order."""
    counts = Counter[str](each.kind for each in plan.items)
    sizes: Counter[str] = Counter()
    for each in plan.items:
        sizes[each.kind] += each.size_bytes
    return {kind: {"count": count, "bytes": sizes[kind]} for kind, count in counts.items()}


def _excerpt(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    hidden = len(text) - 2 * half
    return f"{text[:half]}\n… {hidden:,} characters more: see them with publish --dry-run --json …\n{text[-half:]}"


def confirm(*, yes: bool) -> None:
    """Go on only if the user agrees. Raises `Refused`."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            "not published: there is no terminal to ask on", hint="if all of the above may be public, add --yes"
        )
    if not click.confirm("Publish it?", default=False, err=True):
        raise Refused("not published: the answer was no", hint="nothing was changed")
