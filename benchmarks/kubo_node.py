"""A Kubo node to measure, and to test against: a real daemon in a folder of its own."""

import http.client
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cyberkv.cybergraph.cid import Buffer, Cid

CACHE = Path(
    os.environ.get("CYBERKV_COMPAT_DIR")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cyberkv-compat"
)
"""Where `tests/compat/install.sh` puts other implementations; `tests/compat/folder.sh` says the same to the scripts."""
BINARY = CACHE / "kubo" / "ipfs"
_READY_S = 60
_COMMAND_S = 600


class Node:
    """A repository, and the daemon on it once it is started."""

    def __init__(self, repo: Path, *, online: bool = False, profile: str = "test") -> None:
        """Make the repository. `test` leaves out bootstrap peers, mDNS, port mapping and the vendor's settings."""
        self.repo = repo
        self._environment = {**os.environ, "IPFS_PATH": str(repo), "IPFS_TELEMETRY": "off"}
        self._options = [] if online else ["--offline"]
        self.run("init", f"--profile={profile}")

    def attempt(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run the node's own command line, which may fail and asks the daemon if there is one."""
        return subprocess.run(
            [BINARY, *map(str, words)],
            env=self._environment, capture_output=True, text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip

    def run(self, *words: object) -> str:
        """Run the node's own command line."""
        done = self.attempt(*words)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def start(self) -> None:
        """Start the daemon, or start it again, and wait until it answers."""
        (self.repo / "api").unlink(missing_ok=True)
        log = self.repo / "log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [BINARY, "daemon", *self._options], env=self._environment, stdout=out, stderr=out
            )
        give_up_s = time.monotonic() + _READY_S
        while not (self.repo / "api").exists() or b"Daemon is ready" not in log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                self.kill()
                raise RuntimeError(log.read_text())
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait(30)

    @property
    def api(self) -> str:
        """The RPC's multiaddr."""
        return (self.repo / "api").read_text().strip()

    def connection(self) -> http.client.HTTPConnection:
        """Open the RPC."""
        _, _, host, _, port = self.api.split("/")
        return http.client.HTTPConnection(host, int(port))

    def has(self, cid: Cid) -> bool:
        """Say whether the node has a recursive pin on `cid`."""
        return str(cid) in self.run("pin", "ls", "--type=recursive", "--quiet").split()


@contextmanager
def fresh_node(folder: Path) -> Iterator[Node]:
    """Start an empty node and stop it afterwards.

    What it stored is left to whoever removes the folder, when all is measured: some file systems are several times
    slower in making files for minutes after many were deleted.
    """
    node = Node(folder / f"kubo-{secrets.token_hex(4)}")
    node.start()
    try:
        yield node
    finally:
        node.stop()


def put_each(connection: http.client.HTTPConnection, blocks: Iterator[tuple[Cid, Buffer]]) -> None:
    """Put blocks one by one, each in a call of its own, over one connection."""
    boundary = secrets.token_hex(16)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\n'.encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    for cid, data in blocks:
        target = f"/api/v0/block/put?cid-codec={cid.codec}&mhtype={cid.hash_name}"
        connection.request("POST", target, b"".join((head, data, tail)), headers)
        with connection.getresponse() as answer:
            told = json.loads(answer.read())
        if told.get("Key") != str(cid):
            raise RuntimeError(f"the node says {told}")
