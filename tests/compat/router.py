"""A router that names one gateway as a provider of every CID, and nodes that ask nobody else."""

from contextlib import AbstractContextManager
from typing import Any

from tests.wire.router import RouterServer, gateway_record, in_json, routing

PEER_ID = "12D3KooWEChVMMMzV8acJ53mJHrw1pQ27UAGkCxWXLJutbeUMvVu"
"""The name of whoever serves over HTTP: any key would do, nobody is asked to prove it."""


def naming(url: str) -> AbstractContextManager[RouterServer]:
    """Run a router that knows the gateway at `url`."""
    return routing(in_json([gateway_record(url, ID=PEER_ID)]))


def only_by(router: RouterServer) -> dict[str, Any]:
    """Settings of a node that finds nothing but by this router, and takes any certificate."""
    return {
        "Routing__Type": "delegated", "Routing__DelegatedRouters": [router.url], "Provide__Enabled": False,
        "HTTPRetrieval__TLSInsecureSkipVerify": True,
    }  # fmt: skip
