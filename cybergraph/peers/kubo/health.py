"""What a node is set up to do, as far as it matters to who publishes on it."""

from dataclasses import dataclass
from typing import Any, Final

from ...errors import AccessDenied, RpcFailed
from .rpc import KuboRpc

NOTHING: Final = "nothing"
"""The strategy of a node on which announcing is switched off (`Provide.Enabled`)."""
_ROOTS: Final = "the root is enough: ipfs config Provide.Strategy roots, then restart it"


@dataclass(frozen=True)
class KuboHealth:
    """A node that answered."""

    address: str
    version: str
    strategy: str | None
    """What it announces to the network by itself, or `NOTHING`; None if it does not say."""
    advice: str | None
    """What to change, and why."""


def kubo_health(rpc: KuboRpc) -> KuboHealth:
    """Ask a node for its version and for what it announces.

    Raises `PeerError` if it does not answer, `AccessDenied` if it does not even tell its version.
    """
    version = rpc.json("version")
    number = str(version.get("Version", "unknown")) if isinstance(version, dict) else "unknown"
    try:
        strategy = str(_setting(rpc, "Provide.Strategy") or "all")
        if _setting(rpc, "Provide.Enabled") is False:
            strategy = NOTHING
    except AccessDenied:
        strategy = None
    return KuboHealth(str(rpc.address), number, strategy, _advice(strategy))


def _setting(rpc: KuboRpc, key: str) -> Any:
    """Give a setting of the node; None for one that is not set, so that the default holds."""
    try:
        answer = rpc.json("config", key)
    except RpcFailed:
        return None
    return answer.get("Value") if isinstance(answer, dict) else None


def _advice(strategy: str | None) -> str | None:
    if strategy in (None, NOTHING):
        return None
    kinds = {*strategy.split("+")}
    if kinds & {"all", "pinned"}:
        return f"it announces every block (Provide.Strategy {strategy}), thousands for one conversation; {_ROOTS}"
    if "roots" not in kinds:
        return f"it does not announce again what is pinned (Provide.Strategy {strategy}); {_ROOTS}"
    return None
