"""A real Kubo daemon in a folder of its own, offline and on free ports."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]
BINARY = Path(os.environ.get("CYBERKV_KUBO_DIR", TOP / "build" / "kubo")) / "ipfs"


class Daemon:
    def __init__(self, repo: Path, **settings: Any) -> None:
        self.repo = repo
        self._environment = {**os.environ, "IPFS_PATH": str(repo)}
        self.run("init", "--profile=test")
        for key, value in settings.items():
            self.run("config", "--json", key.replace("__", "."), json.dumps(value))
        self._log = (repo / "log").open("wb")
        self._process = subprocess.Popen(
            [BINARY, "daemon", "--offline"], env=self._environment, stdout=self._log, stderr=subprocess.STDOUT
        )
        give_up_s = time.monotonic() + 60
        while not (repo / "api").exists() or b"Daemon is ready" not in (repo / "log").read_bytes():
            assert self._process.poll() is None, (repo / "log").read_text()
            assert time.monotonic() < give_up_s, (repo / "log").read_text()
            time.sleep(0.05)

    def run(self, *words: str) -> str:
        """Run the node's own command line."""
        done = subprocess.run(
            [BINARY, *words], env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def api(self) -> str:
        """The RPC's multiaddr."""
        return (self.repo / "api").read_text().strip()

    @property
    def gateway(self) -> str:
        """URL of its gateway."""
        return (self.repo / "gateway").read_text().strip()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
