"""Copies of a span that an edit does not reach: as far as this home knows, and named in the receipt.

What was published may lie in CAR files, on nodes and in caches of anybody; nothing takes it back.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from ...cybergraph.chain import load_root, read_receipt, walk
from ...cybergraph.cid import Cid
from ...cybergraph.errors import BadReference, Corrupt, NotFound
from ...cybergraph.index import Index
from ...cybergraph.nodes import Conversation
from ...cybergraph.store.base import Store
from .derived import holders
from .receipt import MAX_COPY_BYTES, MAX_ELSEWHERE, STILL_FOUND


def copies(
    store: Store, index: Index, model: Cid, beginning: Sequence[int], *, block: Cid | None, name: str | None,
    given: Sequence[str] = (),
) -> tuple[str, ...]:  # fmt: skip
    """Name what else holds conversations that begin with these tokens: names, pins, publications, sources.

    `beginning` ends with the first token of the span: the others are read in its context alone. `block` holds that
    token (None: a tail does): where the head of another name has it, prompts go on finding it. `name` is that of the
    conversation that is being edited, `given` is put first. What is sealed or cannot be read is not looked into.
    """
    still: list[str] = []
    if block is not None and index.domain_of(block) is not None:
        still = list(holders(store, index, model, [block], name=name))
    named = [
        *(f"{STILL_FOUND}{each} holds it" for each in still), *given,
        *_held(store, index, list(beginning), {*still, name}),
    ]  # fmt: skip
    found = dict.fromkeys(each.encode()[:MAX_COPY_BYTES].decode(errors="ignore") for each in named)
    if len(found) <= MAX_ELSEWHERE:
        return tuple(found)
    return (*list(found)[: MAX_ELSEWHERE - 1], f"and {len(found) - MAX_ELSEWHERE + 1} more")


def _held(store: Store, index: Index, beginning: list[int], leave_out: Collection[str | None]) -> Iterator[str]:
    seen: dict[Cid, bool] = {}

    def holds(cid: Cid) -> bool:
        if cid not in seen:
            seen[cid] = False
            with suppress(NotFound, Corrupt, BadReference):  # the last for a sealed root
                receipt = read_receipt(store, cid)
                root = load_root(store, cid if receipt is None else receipt.root)
                seen[cid] = root.length >= len(beginning) and _begins_with(store, root, beginning)
        return seen[cid]

    for cid in index.published():
        if holds(cid):
            yield f"published as {cid}: files, nodes and caches that have it keep it"
    for cid, sources in index.sources().items():
        if holds(cid):
            yield from (f"fetched from {source}" for source in sources)
    for cid in index.pins():
        if holds(cid):
            yield f"pinned here: {cid}"
    for head in index.heads():
        if head.name not in leave_out and any(holds(each.root) for each in index.log(head.name)):
            yield f"in this home under the name {head.name}"


def _begins_with(store: Store, root: Conversation, beginning: list[int]) -> bool:
    """Compare block by block: most conversations part in their first one."""
    for step in walk(store, root):
        end = min(step.position_start + root.block_size, len(beginning))
        if list(step.block.tokens[: end - step.position_start]) != beginning[step.position_start : end]:
            return False
        if end == len(beginning):
            return True
    rest = beginning[root.length - len(root.tail.tokens) :]
    return list(root.tail.tokens[: len(rest)]) == rest
