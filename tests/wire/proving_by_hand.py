"""The steps of a proof of access, one by one, as a reader takes them."""

import http.client
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from typing import Any

from cyberkv.cybergraph.access.proof import Challenge, Reader
from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagjson import decode, encode
from cyberkv.cybergraph.gateway.passes import LIFE_S
from cyberkv.cybergraph.peers.proving import ASK_AT, PROVE_AT
from tests.wire.asking import Answer
from tests.wire.sealed_home import SealedTalk

Post = Callable[..., Answer]
KEY = "access-sig/ed25519/1"


def posting(url: str) -> Post:
    def send(target: str, body: bytes | None = None, **fields: Any) -> Answer:
        with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as connection:
            connection.request("POST", target, encode(fields) if body is None else body)
            return Answer(connection.getresponse())

    return send


def challenge(post: Post, talk: SealedTalk, scheme: str = KEY) -> bytes:
    got = post(ASK_AT, root=str(talk.root), scheme=scheme)
    assert got.status == 200, got.body
    item = decode(got.body)
    assert isinstance(item, dict)
    data = item["challenge"]
    assert isinstance(data, bytes)
    return data


def token(post: Post, talk: SealedTalk, reader: Reader | None = None, url: str = "") -> str:
    """Prove access and give the token."""
    data = challenge(post, talk)
    got = post(PROVE_AT, challenge=data, proof=(reader or talk.prover()).answer(data, url or audience(data)))
    assert got.status == 200, got.body
    item = decode(got.body)
    assert isinstance(item, dict)
    assert item["seconds"] == LIFE_S
    assert isinstance(item["token"], str)
    return item["token"]


def audience(data: bytes) -> str:
    return Challenge.decode(data).audience


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def car_cids(got: Answer) -> list[Cid]:
    assert got.status == 200
    return [cid for cid, _ in read_car(BytesIO(got.body))]
