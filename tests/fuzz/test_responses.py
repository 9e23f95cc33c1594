"""Answers that were right once: a reader takes the blocks it asked for, or says by type what was wrong."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagjson import encode
from cyberkv.cybergraph.errors import CyberKVError
from cyberkv.cybergraph.foreign import AnyValue
from cyberkv.cybergraph.peers import HttpPeer, Patience
from cyberkv.cybergraph.peers.proving import ASK_AT, PROVE_AT, WANTS
from tests.fuzz.edits import spoilt
from tests.wire.liar import CAR, RAW, Exchange, Liar, lying
from tests.wire.synthetic import contents, conversation

BRIEF = Patience(connect_s=30, read_s=0.5, block_s=1, retries=1, wait_s=0)
BLOCKS = contents(*conversation(blocks=2))
ROOT, LEAF = next(iter(BLOCKS)), list(BLOCKS)[-1]


def heads(content_type: str, body: bytes) -> tuple[bytes, ...]:
    """One answer in the ways that servers write it."""
    plain = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n"
    parts = (body[:7], body[7:])
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return (
        f"{plain}Content-Length: {len(body)}\r\n\r\n".encode() + body,
        f"{plain}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\nX-Stream-Error: no\r\n\r\n",
        f"{plain}Connection: close\r\n\r\n".encode() + body,
        b"HTTP/1.1 100 Continue\r\n\r\n" + f"{plain}Content-Length: {len(body)}\r\n\r\n".encode() + body,
        b"HTTP/1.1 429 Busy\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    )


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with lying(BLOCKS) as running:
        yield running


SAYS: dict[str, Callable[[HttpPeer], list[tuple[Cid, bytes]]]] = {
    RAW: lambda peer: [(cid, bytes(data)) for cid, data in peer.get_many([LEAF])],
    CAR: lambda peer: [(cid, bytes(data)) for cid, data in peer.get_dag(ROOT)],
}


@pytest.mark.parametrize("form", SAYS)
def test_a_spoilt_answer_gives_right_blocks_or_a_typed_error(liar: Liar, form: str) -> None:
    body = BLOCKS[LEAF] if form == RAW else liar.car(ROOT)
    seeds = heads(form, body)
    outcomes: set[str] = set()

    @settings(max_examples=80)
    @given(spoilt(seeds))
    def check(data: bytes) -> None:
        def behave(talk: Exchange) -> None:
            talk.send(data)
            talk.connection.shutdown(1)

        liar.behave = behave
        with HttpPeer(liar.url, patience=BRIEF, connections=1) as peer:
            try:
                got = SAYS[form](peer)
            except CyberKVError as error:
                outcomes.add(error.kind)
                return
        outcomes.add("taken")
        assert all(BLOCKS[cid] == block for cid, block in got)

    check()
    assert {"taken", "peer-misbehaved", "digest-mismatch"} <= outcomes


class Signer:
    """Answers any challenge, and keeps to whom."""

    root, scheme = ROOT, "access-sig/ed25519/1"

    def __init__(self) -> None:
        self.audiences: set[str] = set()

    def answer(self, challenge: bytes, audience: str) -> bytes:
        self.audiences.add(audience)
        return challenge[:64]


def test_a_gateway_that_asks_for_proofs_and_answers_anything(liar: Liar) -> None:
    """A token is used towards who gave it; whatever comes instead of one is an error by type."""
    signer, outcomes, said = Signer(), set[str](), set[str]()
    fields: list[dict[str, AnyValue]] = [{"challenge": bytes(64)}, {"seconds": 900, "token": "t" * 43}]
    seeds = tuple(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        for body in map(encode, fields)
    )

    @settings(max_examples=80)
    @given(spoilt(seeds), spoilt(seeds))
    def check(first: bytes, second: bytes) -> None:
        def behave(talk: Exchange) -> None:
            if talk.target == ASK_AT:
                talk.send(first)
            elif talk.target == PROVE_AT:
                talk.send(second)
            else:
                talk.head("401 Unauthorized", WWW_Authenticate=WANTS, content_length=0, connection="close")
            talk.connection.shutdown(1)

        liar.behave = behave
        with HttpPeer(liar.url, patience=BRIEF, connections=1) as peer:
            peer.prove_with(signer)
            try:
                list(peer.get_many([LEAF]))
            except CyberKVError as error:
                outcomes.add(error.kind)
                said.add(str(error))
            else:
                outcomes.add("taken")

    check()
    assert "taken" not in outcomes
    assert {"peer-misbehaved", "access-denied"} <= outcomes
    assert signer.audiences == {liar.url}
    assert not any("tttttttt" in message for message in said)
