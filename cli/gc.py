"""`gc`: delete what nobody needs, and keep the store within a size."""

from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.errors import TierFull
from .context import Session, pass_session
from .lock import drop_notes
from .options import parse_size
from .output import answer, facts, remark, say
from .text import count, preview, size
from .trust import keep_grounds
from .writers import require_alone

if TYPE_CHECKING:
    from ..cybergraph.keeping.gc import Garbage

_TITLE_CHARS = 60


class Cap(click.ParamType[int | None]):
    """A size in bytes or binary units; `none` is None."""

    name = "cap"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Read a size."""
        from ..cybergraph.keeping.room import MAX_CAP_BYTES

        if value == "none":
            return None
        if (cap_bytes := parse_size(value)) is None:
            self.fail("write a number of bytes, or one with KiB, MiB, GiB or TiB, or none", param, ctx)
        if cap_bytes > MAX_CAP_BYTES:
            self.fail(f"at most {MAX_CAP_BYTES} bytes; none lifts the cap", param, ctx)
        return cap_bytes


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would go, with --cap also what to evict, and change nothing.")
@click.option(
    "--cap", metavar="SIZE|none", type=Cap(),
    help="Keep the store within SIZE, such as 20GiB, from now on and for every command; none lifts that.",
)  # fmt: skip
@click.pass_context
@pass_session
def gc(session: Session, ctx: click.Context, *, dry_run: bool, cap: int | None) -> None:
    """Delete what no name, log, publication or pin needs.

    What an interrupted fetch left goes, too; models stay. Files give free room back, and what was deleted is written
    over where it lay in a database. Refuses, and names the process, while another one records, fetches or publishes
    here, as `serve --chat` does all the time: what that still needs cannot be told from garbage.

    Under a cap, what nobody needs makes way for new blocks by itself, the longest unused first; after it go the leaves
    of conversations that were fetched, if where they came from has them now. What may be the only copy never goes: a
    command that finds no room ends with 8 instead, and so does this one where SIZE is too small for what has to stay.
    """
    from ..cybergraph.keeping.gc import Swept, collect, find_garbage
    from ..cybergraph.keeping.room import read_cap, to_evict, write_cap

    sets_cap = ctx.get_parameter_source("cap") is not click.core.ParameterSource.DEFAULT
    if not dry_run:
        session.open_to_write()
    store, index, room = session.store, session.index, session.room
    cap_bytes = cap if sets_cap else read_cap(store.path)  # one that cannot be read is said before anything goes
    if room is None:
        garbage, swept = find_garbage(store, index), Swept()
        evicted_leaves = 0 if not sets_cap or cap is None else len(to_evict(store, index, session.has, cap, garbage))
    else:
        if sets_cap and cap is None:
            write_cap(store.path, None)  # first: it must not depend on whether anything can be collected
        require_alone(session, "what it still needs cannot be told from garbage")
        garbage, swept = collect(store, index, lambda found: _before(session, found))
        if sets_cap and cap is not None:
            room.fit(cap)
            write_cap(store.path, cap)
        evicted_leaves = room.evicted_leaves
        drop_notes(session)
        _overwrite(session)
    conversations = [
        {"root": cid, "title": root.title, "created": root.created, "tokens": root.length}
        for cid, root in garbage.conversations.items()
    ]
    data: dict[str, Any] = {
        "dry_run": dry_run,
        "nodes": len(garbage.nodes),
        "leaves": len(garbage.leaves),
        "bytes": garbage.bytes,
        "conversations": conversations,
        "kept_blocks": garbage.kept_blocks,
        "kept_bytes": garbage.kept_bytes,
        "evicted_leaves": evicted_leaves,
        "freed_bytes": swept.freed_bytes,
        "undeletable": [{"path": str(path), "reason": reason} for path, reason in swept.undeletable.items()],
        "used_bytes": store.used_bytes(),
        "cap_bytes": cap_bytes,
    }
    answer(session, data, lambda: _show(data))


def _before(session: Session, garbage: "Garbage") -> None:
    """Note what would be lost with what is about to go."""
    from ..cybergraph.keeping.traces import Traces

    keep_grounds(session, garbage.conversations)
    if garbage.nodes or garbage.leaves:
        Traces(session.home).expect()


def _overwrite(session: Session) -> None:
    from ..cybergraph.keeping.traces import Traces

    traces = Traces(session.home)
    try:
        if traces.remain:
            traces.overwrite(session.store, session.index)
    except TierFull as error:
        remark(session, f"its files keep traces of what was deleted until there is room to write over them: {error}")


def _show(data: dict[str, Any]) -> None:
    if data["conversations"]:
        say("roots that no name, log, publication or pin needs:")
    for each in data["conversations"]:
        title = preview(each["title"], _TITLE_CHARS) or "untitled"
        say(f"  {each['root']}  {title}, {count(each['tokens'], 'token')}, {each['created'] or 'undated'}")
    objects, evicted, cap_bytes = data["nodes"] + data["leaves"], data["evicted_leaves"], data["cap_bytes"]
    facts(
        [
            ("would delete" if data["dry_run"] else "deleted", f"{count(objects, 'object')}, {size(data['bytes'])}"),
            ("would evict" if data["dry_run"] else "evicted", count(evicted, "leaf") if evicted else None),
            ("freed", None if data["dry_run"] else f"{size(data['freed_bytes'])} on the disk"),
            ("kept", f"{count(data['kept_blocks'], 'object')}, {size(data['kept_bytes'])}"),
            ("used", size(data["used_bytes"]) + (f" of at most {size(cap_bytes)}" if cap_bytes is not None else "")),
        ]
    )
    if data["freed_bytes"] > data["bytes"]:
        say("freed is more than was deleted: files also gave back the room of what was deleted or replaced before")
    for each in data["undeletable"]:
        say(f"left: {each['path']}: {each['reason']}", fg="yellow")
