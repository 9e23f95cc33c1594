"""A real Kubo daemon in a folder of its own, on free ports of this machine and with no way out of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from cyberkv.benchmarks.kubo_node import BINARY, Node
from cyberkv.cybergraph.cid import Cid

__all__ = ["BINARY", "Daemon"]

BEYOND = [
    "/ip4/0.0.0.0/ipcidr/2", "/ip4/64.0.0.0/ipcidr/3", "/ip4/96.0.0.0/ipcidr/4", "/ip4/112.0.0.0/ipcidr/5",
    "/ip4/120.0.0.0/ipcidr/6", "/ip4/124.0.0.0/ipcidr/7", "/ip4/126.0.0.0/ipcidr/8", "/ip4/128.0.0.0/ipcidr/1",
    "/ip6/::/ipcidr/0",
]  # fmt: skip
"""Every address but 127.0.0.0/8: an online node dials none of them and accepts none."""


class Daemon(Node):
    """A running node."""

    def __init__(self, repo: Path, *, online: bool = False, profile: str = "test", **settings: Any) -> None:
        """Make a repository and start on it. A setting `Provide__Strategy` is the key `Provide.Strategy`."""
        super().__init__(repo, online=online, profile=profile)
        for key, value in {"Swarm__AddrFilters": BEYOND, **settings}.items():
            self.run("config", "--json", key.replace("__", "."), json.dumps(value))
        self.start()

    def begin(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command of the node and do not wait for it."""
        return subprocess.Popen(
            [BINARY, *words], env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def export(self, cid: object, path: Path) -> None:
        """Write everything below a CID to a CAR file."""
        with path.open("wb") as file:
            subprocess.run(
                [BINARY, "dag", "export", "--progress=false", str(cid)],
                env=self._environment, stdout=file, stderr=subprocess.DEVNULL, timeout=120, check=True,
            )  # fmt: skip

    def digests(self) -> set[bytes]:
        """The hash of every block in the repository, whatever its codec: the node files blocks by hash alone."""
        cids = (cid for cid in self.run("refs", "local").split() if cid.startswith("baf"))
        return {Cid.parse(cid).digest for cid in cids}

    @property
    def gateway(self) -> str:
        """URL of its gateway."""
        return (self.repo / "gateway").read_text().strip()

    @property
    def peer_id(self) -> str:
        return self.run("id", "--format=<id>").strip()

    @property
    def swarm(self) -> str:
        """A multiaddr under which another node on this machine can connect to it."""
        return next(line for line in self.run("id", "--format=<addrs>").split() if line.startswith("/ip4/127."))
