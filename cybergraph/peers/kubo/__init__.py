"""A Kubo node, by its RPC: blocks from it, and conversations pinned on it."""

from .address import Credential, RpcAddress
from .health import KuboHealth, kubo_health
from .peer import KuboPeer
from .pins import KuboPin, named_pins
from .rpc import WRITING, KuboRpc
from .upload import KuboReport, KuboUpload, Part

__all__ = [
    "WRITING",
    "Credential",
    "KuboHealth",
    "KuboPeer",
    "KuboPin",
    "KuboReport",
    "KuboRpc",
    "KuboUpload",
    "Part",
    "RpcAddress",
    "kubo_health",
    "named_pins",
]
