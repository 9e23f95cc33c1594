"""`stats`: what a home holds, and what sharing is worth there."""

from collections import Counter
from collections.abc import Set as AbstractSet
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.ceilings import percent
from ..cybergraph.chain import read_receipt
from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt, NotFound
from ..cybergraph.index import signer_of
from ..cybergraph.keeping.quarantine import quarantined
from ..cybergraph.keeping.room import read_cap
from ..cybergraph.nodes import Model
from ..cybergraph.reuse import SOURCES, Census, Shares, take_census
from ..cybergraph.survey import Survey
from .context import Session, pass_session
from .models import find_codec, readable_records
from .output import answer, facts, say
from .text import count, size

if TYPE_CHECKING:
    from ..cybergraph.store.base import Store


@click.command()
@pass_session
def stats(session: Session) -> None:
    """Count what this home holds, and what sharing saves.

    Every root of every name counts as a request; docs/reuse.md says what each figure means. Reads every node, no
    leaves.
    """
    store, index = session.store, session.index
    survey = Survey.of(store)
    sizes = {cid: store.size_bytes(cid) or 0 for cid in store.cids()}
    leaves = [size_bytes for cid, size_bytes in sizes.items() if cid.codec == "raw"]
    divergences = index.divergences()
    settings, indexed = Counter[str](), set[Cid]()
    for entry in index.entries():
        settings[entry.domain] += 1
        indexed.add(entry.block)
    unindexed = survey.blocks.keys() - indexed
    signed = {signer.hex(): blocks for text, blocks in settings.items() if (signer := signer_of(text))}
    domains = {text: blocks for text, blocks in settings.items() if not signer_of(text)}
    data: dict[str, Any] = {
        "bytes": sum(sizes.values()),
        "leaf_bytes": sum(leaves),
        "leaves": len(leaves),
        "nodes": survey.nodes,
        "blocks": len(survey.blocks),
        "segments": len(survey.segments),
        "roots": len(survey.conversations),
        "conversations": len(index.heads()),
        "published": sum(read_receipt(store, cid) is None for cid in index.published()),
        "models": len({model for _, model in survey.blocks.values()}),
        "registered_models": len(readable_records(session)),
        "unreadable": len(survey.unreadable),
        "domains": domains,
        "signed": signed,
        "unindexed": len(unindexed),
        "divergences": [each._asdict() for each in divergences],
        "pins": len(index.pins()),
        "used_bytes": store.used_bytes(),
        "cap_bytes": read_cap(store.path),
        "quarantined": [cid for cid, _ in quarantined(store)],
    }
    census = take_census(
        (index.log(head.name) for head in index.heads()), survey, store,
        block_bytes=cache(partial(_block_bytes, store)), turn_ends=cache(partial(_turn_ends, session)),
    )  # fmt: skip
    data["reuse"] = _reuse(census)
    cap = "" if data["cap_bytes"] is None else f" of at most {size(data['cap_bytes'])}"

    def show() -> None:
        facts(
            [
                ("home", session.home),
                ("models", f"{data['registered_models']:,} registered; their weights are not counted here"),
                ("conversations", f"{count(data['conversations'], 'name')}{_roots(census.roots, data['roots'])}"),
                ("blocks", f"{data['blocks']:,} of {count(data['models'], 'model')}"),
                ("leaves", f"{data['leaves']:,}, {size(sum(leaves))}"),
                ("nodes", f"{data['nodes']:,}, {size(sum(sizes.values()) - sum(leaves))}"),
                ("published", count(data["published"], "root")),
                ("pins", data["pins"] or None),
                ("used", f"{size(data['used_bytes'])}{cap}"),
                ("quarantined objects", len(data["quarantined"]) or None),
                ("unreadable nodes", data["unreadable"] or None),
            ]
        )
        computed = [(f"domain {name}", count(blocks, "block")) for name, blocks in domains.items()]
        fetched = [("fetched", f"{count(blocks, 'block')} signed by {signer}") for signer, blocks in signed.items()]
        facts([*computed, *fetched, ("not indexed", _unindexed(survey, unindexed))])
        _show_reuse(census)
        for each in divergences:
            say(f"divergence in domain {each.domain}: equal inputs gave {count(len(each.blocks), 'block')}", fg="red")
            for cid in each.blocks:
                say(f"  {cid}")

    answer(session, data, show)


def _unindexed(survey: Survey, blocks: AbstractSet[Cid]) -> str | None:
    """Say what is here and not found by its tokens: what is approximate never is."""
    nodes = survey.conversations.values()
    approximate = blocks & {cid for node in nodes if node.approx is not None for cid in survey.blocks_of(node)}
    why = {"of approximate conversations": len(approximate), "taken out, as by `evict`": len(blocks - approximate)}
    words = ", ".join(f"{number:,} {reason}" for reason, number in why.items() if number)
    return f"{count(len(blocks), 'block')}, not found by tokens: {words}" if blocks else None


def _block_bytes(store: "Store", model: Cid) -> int:
    """Give the payload of a block, or 0 where the model's identity is not here or damaged."""
    from ..runtime.geometry import Geometry

    try:
        return Geometry.from_model(Model.decode(store.get(model))).block_bytes
    except (NotFound, Corrupt):
        return 0


def _turn_ends(session: Session, model: Cid) -> frozenset[int]:
    codec = find_codec(session, model)
    return codec.eos_ids if codec else frozenset()


def _reuse(census: Census) -> dict[str, Any]:
    return {
        "roots": census.roots,
        "blocks_without_sharing": census.blocks_without,
        "bytes_without_sharing": census.bytes_without,
        "blocks_with_sharing": census.blocks_with,
        "bytes_with_sharing": census.bytes_with,
        "sources": {
            source: {"blocks": census.shared_blocks[source], "bytes": census.shared_bytes[source]} for source in SOURCES
        },
        "single": _shares(census.single),
        "fleet": _shares(census.fleet),
    }


def _shares(shares: Shares) -> dict[str, Any]:
    return {
        "conversations": shares.conversations,
        "asked_tokens": shares.asked_tokens,
        "found_tokens": shares.found_tokens,
        "hit": float(shares.found),
        "block_size_loss": float(shares.block_size_loss),
        "ceiling": float(shares.ceiling),
    }


def _show_reuse(census: Census) -> None:
    if not census.blocks_without:
        return
    with_, without = size(census.bytes_with), size(census.bytes_without)
    single, fleet = census.single, census.fleet
    lost = f"{percent(single.block_size_loss)} % lost because only whole blocks are found"
    most = f"at most {percent(single.ceiling)} % if all turns were equally long"
    others = f"{percent(fleet.found)} % of the other tokens found"
    alike = f"at most {percent(fleet.ceiling)} % if all conversations were alike"
    facts(
        [
            ("shared payload", f"{with_} instead of {without} for {count(census.roots, 'root')} in logs"),
            *((f"  from {name}", _blocks(census, name)) for name in SOURCES),
            ("a conversation's own past", f"{percent(single.found)} % of tokens found, {lost}; {most}"),
            ("from other conversations", f"{others}; {alike}"),
        ]
    )


def _roots(logged: int, stored: int) -> str:
    """Say how many roots the logs of names list, and how many are stored where that is another number."""
    other = f" ({stored:,} stored)" if stored != logged else ""
    return f", {count(logged, 'root')} in their logs{other}"


def _blocks(census: Census, source: str) -> str | None:
    blocks = census.shared_blocks[source]
    return f"{count(blocks, 'block')}, {size(census.shared_bytes[source])}" if blocks else None
