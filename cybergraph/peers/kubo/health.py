"""What a node is set up to do, as far as it matters to who publishes on it."""

from dataclasses import dataclass

from ...errors import AccessDenied, RpcFailed
from .rpc import KuboRpc

_EVERY_BLOCK = {"all", "pinned", "mfs"}


@dataclass(frozen=True)
class KuboHealth:
    """A node that answered."""

    address: str
    version: str
    strategy: str | None
    """What it announces to the network; None if it does not say."""
    advice: str | None
    """What to change, and why."""


def kubo_health(rpc: KuboRpc) -> KuboHealth:
    """Ask a node for its version and for what it announces.

    Raises `PeerError` if it does not answer, `AccessDenied` if it does not even tell its version.
    """
    version = rpc.json("version")
    number = str(version.get("Version", "unknown")) if isinstance(version, dict) else "unknown"
    try:
        setting = rpc.json("config", "Provide.Strategy")
        strategy = str(setting.get("Value") or "all") if isinstance(setting, dict) else None
    except RpcFailed:  # not set, so the default holds
        strategy = "all"
    except AccessDenied:
        strategy = None
    advice = None
    if strategy is not None and _EVERY_BLOCK & set(strategy.split("+")):
        advice = (
            f"it announces every block (Provide.Strategy {strategy}), thousands for one conversation; "
            "the root is enough: ipfs config Provide.Strategy roots, then restart it"
        )
    return KuboHealth(str(rpc.address), number, strategy, advice)
