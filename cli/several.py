"""What commands that bring several conversations at once have in common."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..cybergraph.cid import Cid
from .context import Session
from .names import record_head
from .output import say
from .places import Place, note_speeds
from .text import size

if TYPE_CHECKING:
    from ..cybergraph.transfer import FetchReport


def record_all(
    session: Session, reports: "Sequence[FetchReport]", places: Sequence[Place], came: Collection[Cid]
) -> list[dict[str, Any]]:
    """Make each conversation the head of a name, and describe it.

    Of those in `came`, which are here only because they came from elsewhere, it is remembered who gave them.
    """
    gave = list(zip(places, reports[0].sources if reports else (), strict=bool(reports)))
    note_speeds(session, gave)
    lasting = [place.source for place, each in gave if place.is_new and each.blocks and each.state == "ok"]
    rows = []
    for report in reports:
        name = record_head(session, report.root, None)
        if report.root in came:
            session.index.add_sources(report.root, lasting)
        rows.append(
            {
                "root": report.root, "name": name, "blocks_total": report.blocks_total,
                "blocks_had": report.blocks_had, "blocks_fetched": report.blocks_fetched,
                "bytes_fetched": report.bytes_fetched,
            }
        )  # fmt: skip
    return rows


def refusals(reports: "Sequence[FetchReport]") -> list[dict[str, Any]]:
    """List what peers were caught at."""
    return [refusal._asdict() for refusal in (reports[0].refused if reports else ())]


def show_all(conversations: Sequence[dict[str, Any]], refused: Sequence[dict[str, Any]]) -> None:
    """Show what came, and who was not taken at their word."""
    for each in conversations:
        had, fetched = each["blocks_had"], each["blocks_fetched"]
        say(f"{each['name']}  {each['root']}")
        counted = f"{each['blocks_total']:,} objects: {had:,} were here, {fetched:,} fetched"
        say(f"  {counted}, {size(each['bytes_fetched'])}", dim=True)
    for refusal in refused:
        say(f"refused  {refusal['peer']}: {refusal['reason']}", fg="yellow")
