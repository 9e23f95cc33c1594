"""After all of a conversation was sealed again: Kubo nodes get the new, and let go of the epochs before."""

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ..cybergraph.errors import CyberKVError, NotFound
from .context import Session
from .identities import access_folder
from .kubo import kubo_rpc
from .output import remark

if TYPE_CHECKING:
    from ..cybergraph.access.lineage import Lineage, Pin
    from ..cybergraph.cid import Cid
    from ..cybergraph.peers.kubo import RpcAddress
    from ..cybergraph.transfer.progress import Progress


@dataclass(frozen=True)
class Repinned:
    """What became of the pins on one node."""

    node: str
    unpinned: tuple["Cid", ...]
    failed: str | None
    """Why the pins of the epochs before are there still."""
    commands: tuple[str, ...]
    """What to type instead."""


def repin(session: Session, ref: str, state: "Lineage", progress: "Progress") -> "tuple[Lineage, list[Repinned]]":
    """Pin what was published last wherever an epoch before it was pinned, then unpin that; keep the lineage.

    A node that does not do it is told of, with what to type.
    """
    from ..cybergraph.access.lineage import MAX_PINS

    results = []
    old: dict[str, list[Pin]] = {}
    for pin in state.pins:
        if pin.epoch < state.epoch:
            old.setdefault(pin.node, []).append(pin)
    root, folder = state.roots[0], access_folder(session)
    here = session.store.has(root)
    for node, pins in old.items():
        try:
            if not here:
                raise NotFound(f"{root} was written to a file alone")
            state = state.with_pin(node, f"cyberkv/{root}", root, 2 * MAX_PINS)
            folder.keep(state)
            _move(session, node, root, pins, progress)
            state = state.without_pins(tuple(pins))
            folder.keep(state)
        except CyberKVError as error:
            results.append(_failed(ref, node, pins, error))
            remark(session, f"{node} keeps what it has pinned: {error.message}. When it can be reached:")
            for command in results[-1].commands:
                remark(session, f"  {command}")
        else:
            results.append(Repinned(node, tuple(pin.root for pin in pins), None, ()))
    return state, results


def _move(session: Session, node: str, root: "Cid", old: Sequence["Pin"], progress: "Progress") -> None:
    from ..cybergraph.peers.kubo import WRITING
    from ..cybergraph.transfer.kubo import publish_kubo_sealed
    from ..cybergraph.transfer.unpin import unpin

    with closing(kubo_rpc(node, WRITING)) as rpc:
        publish_kubo_sealed(session.store, root, rpc, f"cyberkv/{root}", progress)
        unpin(rpc, (pin.root for pin in old))


def _failed(ref: str, node: str, old: Sequence["Pin"], error: CyberKVError) -> Repinned:
    from ..cybergraph.peers.kubo import RpcAddress

    api = _multiaddr(RpcAddress.parse(node))
    commands = (
        f"cyberkv publish {shlex.quote(ref)} --to readers --kubo {node}",
        f"ipfs --api={api} pin rm {' '.join(str(pin.root) for pin in old)}",
    )
    return Repinned(node, (), error.message, commands)


def _multiaddr(address: "RpcAddress") -> str:
    """Give an address in the form that the `ipfs` command takes."""
    scheme, host, port = address.origin
    try:
        kind = f"ip{ip_address(host).version}"
    except ValueError:
        kind = "dns"
    return f"/{kind}/{host}/tcp/{port}" + ("/https" if scheme == "https" else "")


def shown(results: Sequence[Repinned]) -> list[dict[str, Any]]:
    """Give the results as they stand in an answer."""
    return [
        {"node": each.node, "unpinned": list(each.unpinned), "failed": each.failed, "commands": list(each.commands)}
        for each in results
    ]
