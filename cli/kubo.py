"""How the command reaches a Kubo node: the credential comes from where no process list shows it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..cybergraph.errors import BadReference, NotFound

if TYPE_CHECKING:
    from ..cybergraph.peers import Patience, Peer
    from ..cybergraph.peers.kubo import Credential, KuboRpc


TEXT_VARIABLE, FILE_VARIABLE = "CYBERKV_KUBO_AUTH", "CYBERKV_KUBO_AUTH_FILE"
MAX_CREDENTIAL_BYTES = 8192


def kubo_credential() -> "Credential | None":
    """Read what opens the node, if anything is said. Raises `BadReference`, `NotFound`."""
    from ..cybergraph.peers.kubo import Credential

    if text := os.environ.get(TEXT_VARIABLE):
        return Credential.parse(text)
    if path := os.environ.get(FILE_VARIABLE):
        try:
            with Path(path).open("rb") as file:
                data = file.read(MAX_CREDENTIAL_BYTES)
        except OSError as error:
            raise NotFound(
                f"no credential at {path}: {error.strerror}", hint=f"it is named by {FILE_VARIABLE}"
            ) from error
        try:
            return Credential.parse(data.decode())
        except UnicodeDecodeError as error:
            raise BadReference(f"the credential in {path} is no text", hint="write bearer:TOKEN") from error
    return None


def kubo_rpc(address: str, patience: "Patience") -> "KuboRpc":
    """Prepare calls to a node, without connecting. Raises as `kubo_credential`, and `BadReference` for no address."""
    from ..cybergraph.peers.kubo import KuboRpc, RpcAddress

    return KuboRpc(RpcAddress.parse(address), kubo_credential(), patience=patience)


def open_source(source: str, patience: "Patience | None" = None, hosts: tuple[str, ...] = ()) -> "Peer":
    """Open a gateway, which may redirect to `hosts`, a Kubo node or a CAR file.

    Raises as `open_peer` and `kubo_credential`, and `BadReference` for what is no host.
    """
    from ..cybergraph.peers import KUBO, Reach, open_peer

    credential = kubo_credential() if source.startswith(KUBO) else None
    return open_peer(source, patience=patience, credential=credential, reach=Reach.to(hosts))
