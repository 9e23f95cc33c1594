"""`verify`: check a conversation, and say exactly what was checked."""

import shlex

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt, NotFound, Refused
from ..cybergraph.integrity import Integrity, check_integrity
from ..cybergraph.refs import resolve_root
from .block_bars import block_bars
from .context import Session, pass_session
from .options import REF
from .output import answer, facts, say
from .text import count, size
from .verify_receipt import LEVEL as RECEIPT
from .verify_receipt import verify_receipt

AVAILABLE = ("integrity", RECEIPT)
ABSENT = {
    "layer0": "nothing computes the K and V of the first layer from the tokens to compare them",
    "spot": "nothing computes blocks chosen at random again to compare them",
    "full": "nothing computes all blocks again to compare them",
}
"""Levels that are not there yet, with what each would take."""


@click.command()
@click.argument("ref", type=REF)
@click.option(
    "--level", default="integrity", show_default=True, type=click.Choice((*AVAILABLE, *ABSENT)),
    help=f"How much to check. Not there yet: {', '.join(ABSENT)}.",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), help="Blocks to compute again, for level spot.")
@click.pass_context
@pass_session
def verify(session: Session, ctx: click.Context, ref: str, *, level: str, samples: int | None) -> None:
    """Check a conversation, and say exactly what was checked.

    Level integrity hashes every object of it again (root, model, segments, blocks, leaves) and checks that each block
    stands in its place: model, block before, tokens, position, sizes, and what the index says. It does not show that
    the model gives these keys and values. Exits with 4 if anything fails, and with 3 if something is not here, such as
    leaves that a cap evicted.

    Level receipt checks the signatures of a conversation that was published with one, or of the receipt that REF names:
    who signed, and that they claim that this program gave this root with this model. That attributes; it does not show
    that it is right. Exits with 3 where nobody signed, with 4 where a signature does not hold. The other levels are
    refused with 5, and with the reason why each is not there yet.
    """
    if level in ABSENT:
        raise Refused(
            f"level {level} is not available yet: {ABSENT[level]}", hint=f"available: {', '.join(AVAILABLE)}",
            level=level, available=list(AVAILABLE), unavailable=ABSENT,
        )  # fmt: skip
    if samples is not None:
        raise click.UsageError("--samples goes with --level spot")
    if level == RECEIPT:
        ctx.exit(verify_receipt(session, ref))
    root = resolve_root(ref, session.index, session.store)
    with block_bars(session) as progress:
        found = check_integrity(session.store, session.index, root, progress)
    data = {
        "root": root,
        "level": level,
        "checked": found.blocks,
        "bytes": found.bytes,
        "in_place": found.bound,
        "indexed": found.indexed,
        "approx": found.approx,
        "failed": [{"cid": cid, "reason": reason} for cid, reason in found.failed.items()],
        "absent": found.absent,
        "disputed": [{"cid": cid, "signers": signers} for cid, signers in found.disputed.items()],
    }
    answer(session, data, lambda: _show(root, ref, found))
    if found.failed or found.absent:
        ctx.exit(Corrupt.exit_code if found.failed else NotFound.exit_code)


def _show(root: Cid, ref: str, found: Integrity) -> None:
    for cid, reason in found.failed.items():
        say(f"failed: {reason}", fg="red")
        say(f"  {cid}")
    facts(
        [
            ("root", root),
            ("level", "integrity"),
            ("hashed", f"{count(found.blocks, 'object')}, {size(found.bytes)} match their CIDs"),
            ("in place", f"{count(found.bound, 'block')} of the chain, {found.indexed:,} of them found by the index"),
            ("approximate", found.approx and f"{found.approx}; the root says so"),
            ("not checked", "whether the model gives these keys and values; that takes a recomputation"),
        ]
    )
    if found.failed:
        say(f"{count(len(found.failed), 'object')} failed", fg="red", bold=True)
    if found.absent:
        say(f"{count(len(found.absent), 'object')} not here, the first is {found.absent[0]}", fg="yellow", bold=True)
        say(f"  where it was fetched, `cyberkv fetch {shlex.quote(ref)}` brings them back")
    if found.disputed:
        signers = sorted({key for keys in found.disputed.values() for key in keys})
        say(f"{count(len(found.disputed), 'block')} disputed: trusted signers contradict one another", fg="yellow")
        say(f"  {', '.join(signers)}: none of these blocks is used")
    if not found.failed and not found.absent:
        of_what = "" if found.approx is None else " of an approximate conversation"
        say(f"integrity holds{of_what}", fg="green", bold=True)
