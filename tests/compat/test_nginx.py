"""Our gateway behind nginx, with the configuration that docs/ipfs.md tells people to use."""

import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.peers.kubo import KuboPeer
from tests.cli.conftest import Command
from tests.cli.test_access import public_key
from tests.compat.certificate import make_certificate
from tests.compat.daemon import Daemon
from tests.compat.home import cyberkv, held, make_home, publish, serving
from tests.compat.places import NGINX, TOP, need
from tests.compat.request import ask
from tests.compat.router import naming, only_by

pytestmark = pytest.mark.compat

AROUND = """
user root;
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {server}
}}
"""
"""What Debian's nginx.conf does around a file of conf.d, in a folder of its own."""


def documented() -> str:
    """The configuration of the guide."""
    [block] = re.findall(r"```nginx\n(.*?)```", (TOP / "docs" / "ipfs.md").read_text(), re.DOTALL)
    return str(block)


@contextmanager
def behind_nginx(folder: Path, upstream: str) -> Iterator[str]:
    """The https URL of an nginx in front of `upstream`; names and ports of the guide are replaced, nothing else."""
    need(f"nginx at {NGINX}", NGINX.exists())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    certificate, key = make_certificate(folder)
    text = documented()
    for old, new in {
        "/dns4/kv.example/tcp/443/tls/http": f"/ip4/127.0.0.1/tcp/{port}/tls/http",
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8480": upstream.removeprefix("http://"),
        "/etc/ssl/kv.example.pem": str(certificate),
        "/etc/ssl/kv.example.key": str(key),
    }.items():
        assert old in text
        text = text.replace(old, new)
    config = folder / "nginx.conf"
    config.write_text(AROUND.format(folder=folder, server=text))
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([NGINX, "-p", folder, "-c", config], stdout=output, stderr=output)
    try:
        for _ in range(200):
            assert process.poll() is None, (folder / "output").read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def talk(tmp_path: Path) -> tuple[Path, Cid]:
    """A home with one public conversation of two segments, and one that is not public."""
    home = tmp_path / "home"
    root = make_home(home, talk=300, secret=2)["talk"]
    publish(home, "talk")
    return home, root


def test_answers_pass_unchanged(talk: tuple[Path, Cid], tmp_path: Path) -> None:
    home, root = talk
    blocks = held(home, root)
    leaf = next(cid for cid in blocks if cid.codec == "raw")
    raw, rows = f"/ipfs/{leaf}?format=raw", blocks[leaf]
    with serving(home) as plain, behind_nginx(tmp_path, plain) as url:
        secure = partial(ask, url, trusted=tmp_path / "cert.pem")
        answer = secure(raw)
        assert (answer.status, answer.body) == (200, rows)
        etag = answer.headers["etag"]
        assert not etag.startswith("W/"), "a proxy that rewrites bodies weakens the tag"
        assert secure(raw, headers={"If-None-Match": etag}).status == 304
        answer = secure(raw, "HEAD", {"Accept-Encoding": "gzip"})
        assert (answer.status, answer.headers["content-length"], answer.body) == (200, str(len(rows)), b"")
        answer = secure(raw, headers={"Range": "bytes=8-15"})
        assert (answer.status, answer.body) == (206, rows[8:16])
        assert answer.headers["content-range"] == f"bytes 8-15/{len(rows)}"
        answer = secure(f"/ipfs/{root}?format=car", headers={"Accept-Encoding": "gzip"})
        assert (answer.status, answer.whole, answer.headers.get("content-encoding")) == (200, True, None)
        assert answer.body == ask(plain, f"/ipfs/{root}?format=car").body
        page = secure(f"/ipfs/{root}", headers={"Accept": "text/html"})
        assert f"cyberkv fetch {root} --from https://127.0.0.1<".encode() in page.body
        assert secure("/ipfs/bafkqaaa?format=raw").status == secure("/healthz").status == 200
        assert secure("/metrics").status == 404, "who comes by way of nginx is not on this machine"
        assert ask(plain, "/metrics").status == 200


def test_a_fetch_by_way_of_nginx_and_by_its_router(talk: tuple[Path, Cid], tmp_path: Path) -> None:
    home, root = talk
    with serving(home) as plain, behind_nginx(tmp_path, plain) as url:
        trust = {"SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        for number, source in enumerate((["--from", url], ["--router", url, "--allow-host", "127.0.0.1"])):
            there = tmp_path / f"there-{number}"
            got = cyberkv(there, "fetch", root, *source, **trust)
            assert (got["peers"], got["blocks_fetched"]) == ([url], got["blocks_total"])
            assert held(there, root) == held(home, root)
        refused = cyberkv(tmp_path / "elsewhere", "fetch", root, "--from", url, code=7)
        assert "certificate" in str(refused["error"]).lower()


def test_readers_prove_access_by_way_of_nginx(tmp_path: Path) -> None:
    reader, home = Command(tmp_path / "reader"), tmp_path / "home"
    make_home(home, talk=300)
    sealed = cyberkv(home, "publish", "talk", "--to", public_key(reader))["root"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        behind_nginx(tmp_path, listen) as url,
        serving(home, "--require-proof", "--public-url", url, listen=listen) as plain,
    ):
        trust = {"SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        assert len(cyberkv(reader.home, "fetch", sealed, "--from", url, **trust)["peers"]) == 1
        stranger = Command(tmp_path / "stranger")
        public_key(stranger)
        assert (
            cyberkv(stranger.home, "fetch", sealed, "--from", url, code=6, **trust)["error"]["kind"]
            == "not-a-recipient"
        )
        assert cyberkv(reader.home, "fetch", sealed, "--from", plain, code=6)["error"]["kind"] == "proof-rejected"


def test_a_stream_that_ends_early_is_seen_to(talk: tuple[Path, Cid], tmp_path: Path) -> None:
    home, root = talk
    lost = [cid for cid in held(home, root) if cid.codec == "raw"][-1]
    with serving(home) as plain, behind_nginx(tmp_path, plain) as url:
        car = partial(ask, url, f"/ipfs/{root}?format=car", trusted=tmp_path / "cert.pem")
        assert car().whole
        Command(home).damage(str(lost))
        assert not car().whole


def test_a_node_retrieves_over_http_2_through_nginx(
    talk: tuple[Path, Cid], tmp_path: Path, kubo: Callable[..., Daemon]
) -> None:
    home, root = talk
    with serving(home) as plain, behind_nginx(tmp_path, plain) as url, naming(url) as routed:
        node = kubo("node", **only_by(routed))
        node.run("pin", "add", str(root))
        with KuboPeer(node.api) as peer:
            assert dict(peer.get_dag(root)) == held(home, root)
