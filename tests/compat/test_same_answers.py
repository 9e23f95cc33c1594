"""One conversation in a Kubo node and in our gateway: both answer the same to the same request, byte for byte.

Where they differ the reason stands in `DIFFERENT`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from cyberkv.cybergraph.cid import Cid
from tests.compat.daemon import Daemon
from tests.compat.home import held, make_home, publish, serving
from tests.compat.places import KUBO, need
from tests.compat.request import Answer, ask

pytestmark = pytest.mark.compat

BLOCK = "/segments/0/links/3/to"
RAW, CBOR, CAR = "application/vnd.ipld.raw", "application/vnd.ipld.dag-cbor", "application/vnd.ipld.car"
HEADERS = (
    "content-type", "content-range", "accept-ranges", "cache-control", "ipfs-uri", "access-control-allow-origin",
)  # fmt: skip
ONLY_GET = {"Range", "Cache-Control"}
"""What Kubo answers differently, or with less, where only the head is asked for."""

SAME: list[tuple[str, dict[str, str]]] = [
    *((f"{cid}{query}", {}) for cid in ("ROOT", "LEAF") for query in ("", "?format=raw", "?format=car")),
    ("ROOT?format=cbor", {}),
    *((f"{cid}?format=car&{more}", {}) for cid in ("ROOT", "LEAF") for more in (
        "dag-scope=block", "dag-scope=entity", "dag-scope=all", "dag-scope=nonsense", "car-dups=y", "car-order=dfs",
        "car-version=1", "dag-scope=entity&entity-bytes=0:10",
    )),
    *((cid, {"Accept": kind}) for cid in ("ROOT", "LEAF") for kind in (
        RAW, CAR, f"{CAR}; version=1; order=dfs; dups=y", "*/*", "application/x-nothing",
    )),
    ("ROOT", {"Accept": CBOR}), ("LEAF", {"Accept": CBOR}), ("ROOT?format=dag-cbor", {"Accept": RAW}),
    *((f"ROOT{path}{query}", {}) for query in ("", "?format=raw", "?format=dag-cbor") for path in (
        "/segments/0", BLOCK, f"{BLOCK}/kv/0", f"{BLOCK}/", "/tail/kv/0", "/segments/9", "/segments/-1", "/nothing",
    )),
    *((f"ROOT{path}?format=car", {}) for path in ("/segments/0", BLOCK, f"{BLOCK}/kv/0", "/model")),
    *((f"ROOT{path}", {}) for path in ("/segments", "/title", "/length", "/parent", "/segments/0/links")),
    *((f"{cid}?format=raw", {"Range": span}) for cid in ("ROOT", "LEAF") for span in (
        "bytes=0-9", "bytes=2-", "bytes=-5", "bytes=9999999-",
    )),
    *((cid, {"If-None-Match": tag}) for cid in ("ROOT", "LEAF") for tag in ("*", '"CID"', 'W/"other"')),
    ("LEAF?filename=rows.bin&download=true", {}), ("ROOT", {"Service-Worker": "script"}),
    ("LEAF/below", {}), ("ABSENT", {}), ("ABSENT?format=raw", {}), ("ABSENT/a/b", {}),
    ("ABSENT", {"Cache-Control": "only-if-cached"}), ("ROOT?format=raw", {"Cache-Control": "only-if-cached"}),
    ("bafkqaaa?format=raw", {}), ("bafkqaaa?format=car", {}), ("nonsense", {}), ("nonsense?format=raw", {}),
]  # fmt: skip

DIFFERENT: dict[tuple[str, str], tuple[int, int, str]] = {
    ("ROOT?format=dag-json", ""): (406, 200, "we write nodes as DAG-JSON when asked to, Kubo does where configured"),
    ("LEAF?format=cbor", ""): (200, 406, "a form that the block does not have is refused, not ignored"),
    ("ROOT?format=nonsense", ""): (200, 406, "an unknown form is refused, not ignored"),
    ("ROOT?format=car&car-version=2", ""): (400, 406, "another CAR than we write is not acceptable, not malformed"),
    ("ROOT/title?format=raw", ""): (200, 501, "what is no link has no block; Kubo sends the block it stands in"),
    ("ROOT/nothing?format=car", ""): (200, 404, "what is not there has no CAR; Kubo sends the path to it"),
    ("ROOT/segments/x", ""): (500, 404, "a list has no such entry"),
    ("ROOT/segments/00", ""): (200, 404, "one address for one thing"),
    ("ABSENT?format=car", ""): (200, 404, "Kubo answers 200 and then breaks off"),
    ("ROOT", "text/html"): (301, 200, "pages stand where the bytes do, without a slash at the end"),
}


class Both(NamedTuple):
    """Two gateways over one conversation."""

    urls: tuple[str, str]
    names: dict[str, Cid]

    def ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[Answer, Answer]:
        """Ask Kubo and us the same."""
        for name, cid in self.names.items():
            if path.startswith(name):
                path = path.replace(name, str(cid), 1)
                headers = {key: value.replace("CID", str(cid)) for key, value in headers.items()}
        kubo, ours = (ask(url, f"/ipfs/{path}", method, headers) for url in self.urls)
        return kubo, ours


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    need(f"Kubo at {KUBO}", KUBO.exists())
    folder = tmp_path_factory.mktemp("both")
    root = make_home(folder / "home", talk=300)["talk"]
    node = Daemon(folder / "node")
    publish(folder / "home", "talk", "--kubo", node.api)
    publish(folder / "home", "talk")
    leaf = next(cid for cid in held(folder / "home", root) if cid.codec == "raw")
    names = {"ROOT": root, "LEAF": leaf, "ABSENT": Cid.of(b"nobody has this", "raw", "sha2-256")}
    with serving(folder / "home") as url:
        yield Both((node.gateway, url), names)
    node.stop()


@pytest.mark.parametrize(("path", "headers"), SAME, ids=str)
def test_both_answer_the_same(both: Both, path: str, headers: dict[str, str]) -> None:
    for method in ("GET", "HEAD")[: 1 if ONLY_GET & headers.keys() else 2]:
        kubo, ours = both.ask(method, path, headers)
        assert ours.status == kubo.status
        if kubo.status >= 300:
            continue
        assert ours.body == kubo.body
        assert {name: ours.headers.get(name) for name in HEADERS} == {name: kubo.headers.get(name) for name in HEADERS}
        if kubo.headers["etag"].startswith('"'):
            assert ours.headers["etag"] == kubo.headers["etag"]


@pytest.mark.parametrize(("path", "accept"), DIFFERENT)
def test_where_they_differ_is_known(both: Both, path: str, accept: str) -> None:
    kubo, ours = both.ask("GET", path, {"Accept": accept} if accept else {})
    assert (kubo.status, ours.status) == DIFFERENT[path, accept][:2]
