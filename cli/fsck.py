"""`fsck`: check everything this home claims."""

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt
from ..cybergraph.store.base import Finding
from ..cybergraph.store.fsck import Counts
from ..cybergraph.store.fsck import fsck as check_home
from .context import Session, pass_session
from .output import answer, facts, say
from .text import size


@click.command()
@click.option("--repair", is_flag=True, help="Drop damaged blocks and make the index anew, then check again.")
@click.pass_context
@pass_session
def fsck(session: Session, ctx: click.Context, *, repair: bool) -> None:
    """Check every block and every link of this home.

    Re-hashes every block, decodes every node, follows every conversation, compares the index with the blocks.
    Exits with 4 if anything is wrong. What `--repair` drops is computed or fetched again when it is needed.
    """
    if repair:
        session.open_to_write()
    counts = Counts()
    findings = list(check_home(session.store, session.index, counts))
    dropped = sorted({each.cid for each in findings if each.cid and each.what in ("block", "node")})
    if repair and findings:
        session.store.delete_many(dropped)
        session.index.rebuild(session.store)
        counts = Counts()
        findings = list(check_home(session.store, session.index, counts))
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
    }
    if repair:
        data["dropped"] = dropped
    answer(session, data, lambda: _show(findings, counts, dropped if repair else []))
    if findings:
        ctx.exit(Corrupt.exit_code)


def _show(findings: list[Finding], counts: Counts, dropped: list[Cid]) -> None:
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
            ("orphan leaves", f"{counts.orphan_leaves:,}"),
            ("dropped", f"{len(dropped):,} damaged blocks" if dropped else None),
        ]
    )
    if findings:
        say(f"{len(findings):,} things are wrong", fg="red", bold=True)
    else:
        say("nothing is wrong", fg="green", bold=True)
