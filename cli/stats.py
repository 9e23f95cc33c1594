"""`stats`: what a home holds."""

from collections import Counter
from typing import Any

import click

from ..cybergraph.chain import read_receipt
from ..cybergraph.index import signer_of
from ..cybergraph.keeping.quarantine import quarantined
from ..cybergraph.keeping.room import read_cap
from ..cybergraph.survey import Survey
from .context import Session, pass_session
from .models import readable_records
from .output import answer, facts, say
from .text import count, size


@click.command()
@pass_session
def stats(session: Session) -> None:
    """Count what this home holds.

    Reads every node, no leaves.
    """
    store, index = session.store, session.index
    survey = Survey.of(store)
    sizes = {cid: store.size_bytes(cid) or 0 for cid in store.cids()}
    leaves = [size_bytes for cid, size_bytes in sizes.items() if cid.codec == "raw"]
    divergences = index.divergences()
    domains = Counter("signed" if signer_of(entry.domain) else entry.domain for entry in index.entries())
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
        "divergences": [each._asdict() for each in divergences],
        "pins": len(index.pins()),
        "used_bytes": store.used_bytes(),
        "cap_bytes": read_cap(store.path),
        "quarantined": [cid for cid, _ in quarantined(store)],
    }
    cap = "" if data["cap_bytes"] is None else f" of at most {size(data['cap_bytes'])}"

    def show() -> None:
        facts(
            [
                ("home", session.home),
                ("models", f"{data['registered_models']:,} registered; their weights are not counted here"),
                ("conversations", f"{count(data['conversations'], 'name')}, {count(data['roots'], 'root')}"),
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
        facts([(f"domain {name}", count(blocks, "block")) for name, blocks in domains.items()])
        for each in divergences:
            say(f"divergence in domain {each.domain}: equal inputs gave {count(len(each.blocks), 'block')}", fg="red")
            for cid in each.blocks:
                say(f"  {cid}")

    answer(session, data, show)
