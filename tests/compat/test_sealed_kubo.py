"""A sealed publication through a real Kubo node: what its repository holds, and what it is asked, tell nothing."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import publish_car
from cyberkv.cybergraph.transfer.sealed import SealedReport, publish_sealed
from tests.access.sealed import ISSUER, KEY, READER
from tests.access.test_negative_outsider import TITLE, traces
from tests.compat.daemon import BINARY, Daemon
from tests.compat.places import need
from tests.compat.proxy import StallingProxy
from tests.wire.synthetic import contents, record

pytestmark = pytest.mark.compat


class RecordingProxy(StallingProxy):
    """Passes everything on and keeps what was asked."""

    def __init__(self, target: str) -> None:
        self.asked = bytearray()
        super().__init__(target, 0)

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with source, suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    self.asked += data
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    need("Kubo", BINARY.exists())
    running = Daemon(tmp_path_factory.mktemp("kubo") / "repo")
    yield running
    running.stop()


def cyberkv(home: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "cyberkv.cli", "--home", str(home), "--json", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


def sealed_home(home: Path, public: str) -> tuple[Cid, SealedReport, dict[str, bytes]]:
    """Record, seal for a reader, write a CAR file; give root, report, and what nobody may find."""
    from cyberkv.cybergraph.access import PublicIdentity

    home.mkdir(mode=0o700)
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        root = record(store, blocks=300, tail_tokens=3, seed=TITLE)
        state = Lineage.begin("talk", ISSUER.public().signing, "2026-01-01T00:00:00Z", alg=1, kem="x25519")
        state = replace(state.with_reader("reader", PublicIdentity.parse(public)), key=KEY.reveal())
        _, report = publish_sealed(store, index, root, state, ISSUER)
        publish_car(store, report, home / "sealed.car")
        return root, report, traces(store, root, READER)


def test_a_reader_gets_it_from_the_node_and_the_node_learns_nothing(node: Daemon, tmp_path: Path) -> None:
    here, there, stranger = tmp_path / "here", tmp_path / "there", tmp_path / "stranger"
    public = cyberkv(there, "key", "new")[1]["public"]
    root, report, hidden = sealed_home(here, public)
    node.run("dag", "import", str(here / "sealed.car"))

    held = node.digests()
    with DiskStore(here / "store", read_only=True) as store:
        private = list(closure(store, root))
        assert not {cid.digest for cid in private} & held
        assert {cid.digest for cid in report.cids} <= held  # and all of it is pinned by its root
        before = contents(store, root)
    assert str(report.root) in node.run("pin", "ls", "--type=recursive", "--quiet")
    node.export(report.root, tmp_path / "node.car")
    seen = (tmp_path / "node.car").read_bytes()
    for name, trace in hidden.items():
        assert trace not in seen, name

    with RecordingProxy(node.gateway) as proxy:
        code, got = cyberkv(there, "fetch", str(report.root), "--from", proxy.url)
        assert code == 0, got
        code, refused = cyberkv(stranger, "fetch", str(report.root), "--from", proxy.url)
        assert (code, refused["error"]["kind"]) == (6, "not-a-recipient")
        asked = bytes(proxy.asked)
    assert str(report.root).encode() in asked
    for name, trace in hidden.items():
        assert trace not in asked, name
    assert public.encode()[4:40] not in asked
    with DiskStore(there / "store", read_only=True) as store:
        assert contents(store, root) == before
    if (stranger / "store").exists():
        with DiskStore(stranger / "store", read_only=True) as store:
            assert not {*store.cids()} & {*private}
