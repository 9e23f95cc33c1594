"""A Kubo node, by its RPC: blocks from it, and conversations pinned on it."""

from .address import Credential, RpcAddress
from .health import KuboHealth, kubo_health
from .peer import KuboPeer
from .rpc import KuboRpc
from .upload import KuboReport, KuboUpload, Part

__all__ = [
    "Credential",
    "KuboHealth",
    "KuboPeer",
    "KuboReport",
    "KuboRpc",
    "KuboUpload",
    "Part",
    "RpcAddress",
    "kubo_health",
]
