"""Questions to a gateway as a stranger's program asks them: status, headers and bytes, over a plain connection."""

import hashlib
import http.client
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from cyberkv.cybergraph.cid import Buffer
from cyberkv.cybergraph.foreign import AnyCid, any_cid
from cyberkv.cybergraph.gateway.carstream import car_header
from cyberkv.cybergraph.varint import write_varint

RAW, CAR = "application/vnd.ipld.raw", "application/vnd.ipld.car"
DAG_CBOR, DAG_JSON = "application/vnd.ipld.dag-cbor", "application/vnd.ipld.dag-json"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class Answer:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {key.lower(): value for key, value in answer.getheaders() if key.lower() != "date"}
        self.body = answer.read()


Ask = Callable[..., Answer]


def asking(url: str) -> Ask:
    """Ask a server: `ask("/ipfs/…?format=raw", method="HEAD", if_none_match="*")`."""
    address = url.removeprefix("http://")

    def send(target: str, method: str = "GET", **headers: str) -> Answer:
        with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, target, headers=named)
            return Answer(connection.getresponse())

    return send


CODECS = {"raw": b"\x55", "dag-cbor": b"\x71", "dag-pb": b"\x70", "cbor": b"\x51",
          "dag-json": b"\xa9\x02", "json": b"\x80\x04"}  # fmt: skip


def foreign(codec: str, data: bytes) -> AnyCid:
    """Name a block of any codec by sha2-256."""
    return any_cid(b"\x01" + CODECS[codec] + b"\x12\x20" + hashlib.sha256(data).digest())


def write_any_car(path: Path, root: AnyCid, blocks: Iterable[tuple[AnyCid, Buffer]]) -> None:
    """Write a CAR whose CIDs may have any form."""
    with path.open("wb") as file:
        file.write(car_header(root))
        for cid, data in blocks:
            file.write(write_varint(len(cid) + len(data)) + cid + data)
