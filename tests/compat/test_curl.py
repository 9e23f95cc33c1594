"""curl, whose HTTP/2 is another library's: it reads all forms over HTTPS, with both protocols."""

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyberkv.benchmarks import made_up
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.tls import Certificate, TlsServer
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers.carfile import CarFilePeer
from cyberkv.cybergraph.store import MemoryStore
from tests.compat.certificate import make_certificate
from tests.wire.conftest import running

pytestmark = pytest.mark.compat


def has_http2() -> bool:
    curl = shutil.which("curl")
    return curl is not None and "HTTP2" in subprocess.run([curl, "--version"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not has_http2(), reason="no curl with HTTP/2 on this machine")
@pytest.mark.parametrize("protocol", ["2", "1.1"])
def test_curl_reads_everything_by_either_protocol(tmp_path: Path, protocol: str) -> None:
    store = MemoryStore()
    root = made_up.record(store, 64 << 20, leaf_bytes=256 << 10, leaf_hash="blake3")
    cids = list(closure(store, root))
    certificate = make_certificate(tmp_path)
    with ExitStack() as stack:
        index = stack.enter_context(Index(tmp_path / "index"))
        index.publish(root, cids)
        app = build_app(Published(store, index))
        served = stack.enter_context(
            running(app, make=lambda *arguments: TlsServer(*arguments, Certificate(*certificate)))
        )

        def curl(*line: str) -> str:
            command = ["curl", "-sS", "--cacert", str(certificate[0]), f"--http{protocol}", "-w", "%{http_version}"]
            return subprocess.run([*command, *line], check=True, capture_output=True, text=True).stdout

        assert curl("-o", str(tmp_path / "all.car"), f"{served.url}/ipfs/{root}?format=car") == protocol
        with CarFilePeer(tmp_path / "all.car") as peer:
            assert {cid: bytes(data) for cid, data in peer.get_many(cids)} == {cid: store.get(cid) for cid in cids}
        some = [f"{served.url}/ipfs/{cid}?format=raw" for cid in cids[:300]]
        assert curl("--parallel", "--remote-name-all", "--output-dir", str(tmp_path), *some) == protocol * len(some)
        assert curl("-I", "-o", "/dev/null", some[0]) == protocol
