"""`fsck`: check everything this home claims."""

from typing import TYPE_CHECKING

import click

from ..cybergraph.errors import Corrupt
from ..cybergraph.keeping.fsck import Counts
from ..cybergraph.keeping.fsck import fsck as check_home
from ..cybergraph.probe import probe
from ..cybergraph.store.base import Finding
from .context import Session, pass_session
from .kubo import open_source
from .output import answer, facts, say
from .text import count, size

if TYPE_CHECKING:
    from ..cybergraph.keeping.repair import Repaired


@click.command()
@click.option("--repair", is_flag=True, help="Put right what can be, then check again.")
@click.option(
    "--from", "sources", metavar="URL|FILE.car", multiple=True,
    help="Where to bring lost blocks from, after the peers a conversation came from; implies --repair.",
)  # fmt: skip
@click.pass_context
@pass_session
def fsck(session: Session, ctx: click.Context, *, repair: bool, sources: tuple[str, ...]) -> None:
    """Check every block and every link of this home.

    Re-hashes every block, decodes every node, follows every conversation, compares the index with the blocks.
    Exits with 4 if anything is wrong. Other commands may run meanwhile.

    `--repair` takes damaged blocks out and keeps their bytes in the store's folder `quarantine`, brings what
    conversations lack from the peers they were fetched from, and makes the index anew. What nobody has is computed
    again when it is needed. No gateway or node named with `--from` is asked for conversations that never left this
    home.
    """
    from ..cybergraph.keeping.repair import Repaired
    from ..cybergraph.keeping.repair import repair as repair_home

    session.require_home()
    probe(session.home / "store/catalog", session.home / "index")
    if repair or sources:
        session.open_to_write()
    counts = Counts()
    findings = list(check_home(session.inspect(), session.index, counts))
    repaired = Repaired()
    if findings and (repair or sources):
        repaired = repair_home(session.store, session.index, findings, sources, open_source)
        counts = Counts()
        findings = list(check_home(session.inspect(), session.index, counts))
    data: dict[str, object] = {
        "ok": not findings,
        "findings": [{"cid": each.cid, "what": each.what, "reason": each.reason} for each in findings],
        "nodes": counts.nodes,
        "leaves": counts.leaves,
        "leaf_bytes": counts.leaf_bytes,
        "conversations": counts.conversations,
        "index_entries": counts.index_entries,
        "orphan_leaves": counts.orphan_leaves,
        "unnamed_conversations": counts.unnamed_conversations,
        "foreign_nodes": counts.foreign_nodes,
        "absent_leaves": counts.absent_leaves,
        "orphans": [{"cid": each.cid, "what": each.what, "reason": each.reason} for each in counts.orphans],
    }
    if repair or sources:
        data |= {
            "dropped": repaired.dropped,
            "refetched": [{"root": root, "blocks": blocks} for root, blocks in repaired.refetched.items()],
            "failed": [{"root": root, "reason": reason} for root, reason in repaired.failed.items()],
        }
    answer(session, data, lambda: _show(findings, counts, repaired))
    if findings:
        ctx.exit(Corrupt.exit_code)


def _show(findings: list[Finding], counts: Counts, repaired: "Repaired") -> None:
    for each in findings:
        say(f"{each.what}: {each.reason}", fg="red")
        if each.cid:
            say(f"  {each.cid}")
    facts(
        [
            ("nodes", f"{counts.nodes:,}"),
            ("leaves", f"{counts.leaves:,}, {size(counts.leaf_bytes)}"),
            (
                "conversations",
                f"{counts.conversations:,}, {counts.unnamed_conversations:,} of them without a name",
            ),
            ("index entries", f"{counts.index_entries:,}"),
            ("orphans", f"{len(counts.orphans):,}, which `gc` deletes" if counts.orphans else "0"),
            ("absent leaves", f"{counts.absent_leaves:,}, which `fetch` brings back" if counts.absent_leaves else None),
            ("dropped", count(len(repaired.dropped), "damaged object") if repaired.dropped else None),
            ("brought back", count(sum(repaired.refetched.values()), "object") if repaired.refetched else None),
        ]
    )
    for root, reason in repaired.failed.items():
        say(f"not brought back for {root}: {reason}", fg="yellow")
    if findings:
        say(f"{count(len(findings), 'thing')} {'is' if len(findings) == 1 else 'are'} wrong", fg="red", bold=True)
    else:
        say("nothing is wrong", fg="green", bold=True)
