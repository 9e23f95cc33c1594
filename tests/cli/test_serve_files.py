"""`serve --car` and `serve --tls-cert` as processes: files without a home, beside a home, and HTTPS."""

import http.client
import io
import json
import os
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.car import read_car, write_car
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from tests.cli.conftest import Command
from tests.cli.test_serve import PROGRAM, start, status
from tests.compat.certificate import make_certificate
from tests.forked import Forked
from tests.unit.test_carcontent import CBOR_CID, FOREIGN, LEAF, LEAF_CID, PB_CID, car
from tests.wire.synthetic import contents, record


@contextmanager
def served(
    home: Path, *line: object, end: signal.Signals = signal.SIGINT
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Serve; give the answer, and a list that holds the lines of stderr once it is over."""
    process = start(home, "serve", "--listen", "127.0.0.1:0", *line)
    said: list[str] = []
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, process.communicate()
        yield json.loads(first), said
    finally:
        process.send_signal(end)
        stdout, stderr = process.communicate()
        said += stderr.splitlines()
        assert (process.returncode, stdout) == (130 if end == signal.SIGINT else -end, "")
        assert "Traceback" not in stderr


def get(url: str, **headers: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers)) as answer:
        body: bytes = answer.read()
        return body


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A CAR of four codecs that CyberKV did not make."""
    path = tmp_path / "foreign.car"
    path.write_bytes(car([PB_CID], FOREIGN))
    return path


def test_a_file_is_served_without_a_home(tmp_path: Path, foreign: Path) -> None:
    home = tmp_path / "none"
    with served(home, "--car", foreign) as (answer, said):
        url = answer.pop("url")
        assert answer == {
            "published": [],
            "cars": [{"path": str(foreign), "roots": [str(PB_CID)], "blocks": len(FOREIGN), "whole": True}],
        }
        for cid, data in FOREIGN:
            assert get(f"{url}/ipfs/{cid}?format=raw") == data
        assert get(f"{url}/ipfs/{CBOR_CID}/leaf?format=raw") == LEAF
        assert len(get(f"{url}/ipfs/{PB_CID}?format=car")) > sum(len(data) for _, data in FOREIGN)
        assert str(CBOR_CID).encode() in get(f"{url}/ipfs/{FOREIGN[1][0]}", Accept="text/html")
        assert str(PB_CID).encode() in get(f"{url}/", Accept="text/html")
        assert get(f"{url}/healthz") == b"ok\n"
        assert b'cyberkv_gateway_requests_total{form="car",status="200"} 1.0' in get(f"{url}/metrics")
    assert not home.exists()
    assert said[-1] == "stopped"
    assert not any("nothing is published" in line for line in said)


def test_files_are_served_beside_a_home_and_nothing_private_with_them(
    story: Command, tmp_path: Path, foreign: Path
) -> None:
    root = story.json("show", "story")["cid"]
    store = MemoryStore()
    other = record(store, blocks=3)
    ours = tmp_path / "ours.car"
    with ours.open("wb") as file:
        write_car(file, [other], contents(store, other).items())
    with served(story.home, "--car", foreign, "--car", ours) as (answer, _):
        url = answer["url"]
        assert [each["path"] for each in answer["cars"]] == [str(foreign), str(ours)]
        assert status(f"{url}/ipfs/{root}?format=raw") == 404
        assert b"cyberkv_scrub_blocks" in get(f"{url}/metrics")
        got = dict(read_car(io.BytesIO(get(f"{url}/ipfs/{other}?format=car"))))
        assert got == contents(store, other)
        assert get(f"{url}/ipfs/{LEAF_CID}?format=raw") == LEAF
        story("publish", root, "--public", "--yes")
        assert status(f"{url}/ipfs/{root}?format=raw") == 200
    with DiskStore(story.home / "store", read_only=True) as home:
        assert not home.has(other)  # nothing was imported


def test_a_file_that_is_cut_or_changed_is_said_so(tmp_path: Path, foreign: Path) -> None:
    whole = foreign.read_bytes()
    foreign.write_bytes(whole[:-1])
    with served(tmp_path / "none", "--car", foreign) as (answer, said):
        assert answer["cars"][0]["whole"] is False
        assert answer["cars"][0]["blocks"] == len(FOREIGN) - 1
        leaf = f"{answer['url']}/ipfs/{LEAF_CID}?format=raw"
        assert get(leaf) == LEAF
        foreign.write_bytes(whole.replace(LEAF, b"X" + LEAF[1:]))
        assert status(leaf) == 500
    assert any("what stands before it is served" in line for line in said)


def test_what_is_no_car_is_refused_before_anything_is_served(story: Command, tmp_path: Path, foreign: Path) -> None:
    page = tmp_path / "page.car"
    page.write_bytes(b"<!DOCTYPE html>" * 100)
    assert story.error(4, "serve", "--car", foreign, "--car", page)["kind"] in ("malformed-car", "limit-exceeded")
    assert story.error(2, "serve", "--car", tmp_path / "none.car")["kind"] == "usage"
    assert story.error(2, "serve", "--car", tmp_path)["kind"] == "usage"


def test_https_with_a_certificate(tmp_path: Path, foreign: Path) -> None:
    cert, key = make_certificate(tmp_path)
    line = ("--car", foreign, "--tls-cert", cert, "--tls-key", key)
    with served(tmp_path / "none", *line, end=signal.SIGTERM) as (answer, _):
        address = answer["url"].removeprefix("https://")
        for protocol in ("h2", "http/1.1"):
            context = ssl.create_default_context(cafile=cert)
            context.set_alpn_protocols([protocol])
            with closing(http.client.HTTPSConnection(address, timeout=120, context=context)) as connection:
                connection.connect()
                assert connection.sock.selected_alpn_protocol() == protocol
                if protocol == "http/1.1":
                    connection.request("GET", f"/ipfs/{LEAF_CID}?format=raw")
                    assert connection.getresponse().read() == LEAF


def test_certificates_that_cannot_be_used(story: Command, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    assert story.error(2, "serve", "--tls-cert", cert)["kind"] == "usage"
    assert story.error(2, "serve", "--tls-key", key)["kind"] == "usage"
    assert story.error(2, "serve", "--tls-cert", key, "--tls-key", key)["kind"] == "bad-reference"
    key.chmod(0o644)
    error = story.error(5, "serve", "--tls-cert", cert, "--tls-key", key)
    assert error["kind"] == "refused"
    assert "chmod" in error["hint"]


def test_listening_everywhere_it_prints_an_address_that_can_be_used(tmp_path: Path, foreign: Path) -> None:
    process = start(tmp_path / "none", "serve", "--car", foreign, "--listen", "0.0.0.0:0")
    url = json.loads(process.stdout.readline())["url"]
    assert "//0.0.0.0" not in url
    assert status(f"{url}/ipfs/{LEAF_CID}?format=raw") == 200
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate()
    assert "listens on every address" in stderr


def test_a_reader_of_the_url_alone(tmp_path: Path, foreign: Path) -> None:
    process = Forked(["--home", tmp_path / "none", "-q", "serve", "--car", foreign, "--listen", "127.0.0.1:0"])
    assert status(process.stdout.readline().strip() + "/healthz") == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "")


def test_serving_loads_nothing_for_tensors(tmp_path: Path, foreign: Path) -> None:
    process = subprocess.Popen(
        [PROGRAM[0], "-X", "importtime", *PROGRAM[1:], "--home", str(tmp_path / "none"), "serve", "--car", str(foreign),
         "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert b"<!doctype html>" in get(process.stdout.readline().strip() + "/", Accept="text/html").lower()
    process.send_signal(signal.SIGINT)
    loaded = {line.rpartition("|")[2].strip() for line in process.communicate()[1].splitlines()}
    assert "cyberkv.cybergraph.gateway.pages" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "safetensors", "tokenizers"}
