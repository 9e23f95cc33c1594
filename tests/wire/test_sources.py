"""Several sources at once: all of them work, and a dead, slow or lying one costs little and is named."""

import threading
from collections.abc import Callable

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import PeerUnreachable
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from cyberkv.cybergraph.transfer.intake import Few
from cyberkv.cybergraph.transfer.sources import Sources
from tests.wire.liar import CAR, Exchange, lying
from tests.wire.synthetic import contents, conversation
from tests.wire.test_fetch_http import no_streams
from tests.wire.test_http_peer import early

PeerAt = Callable[..., HttpPeer]


def test_every_source_gives_a_share(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=40)
    blocks = contents(origin, root)
    store = MemoryStore()
    with lying(blocks, no_streams) as one, lying(blocks, no_streams) as two, lying(blocks) as streaming:
        report = fetch(store, index, root, [peer_at(server.url) for server in (one, two, streaming)])
    assert contents(store, root) == blocks
    assert [source.peer for source in report.sources] == [one.url, two.url, streaming.url]
    assert all(source.blocks for source in report.sources)
    assert sum(source.blocks for source in report.sources) == report.blocks_fetched == len(blocks)
    assert sum(source.bytes for source in report.sources) == report.bytes_fetched
    assert {source.state for source in report.sources} == {"ok"}


def test_a_dead_source_is_named_and_the_other_gives_everything(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=40)
    blocks = contents(origin, root)
    with lying(blocks) as gone:
        dead = gone.url
    store = MemoryStore()
    with lying(blocks) as honest:
        report = fetch(store, index, root, [peer_at(dead), peer_at(honest.url)])
    assert contents(store, root) == blocks
    assert {refusal.peer for refusal in report.refused} == {dead}
    assert [source.blocks for source in report.sources] == [0, len(blocks)]
    assert report.sources[0].state != "ok"


def test_what_one_holds_up_is_asked_of_another(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=40)
    blocks = contents(origin, root)

    def slow(talk: Exchange) -> None:
        """Answers at once, except for leaves."""
        talk.hang() if talk.cid.codec == "raw" else no_streams(talk)

    store = MemoryStore()
    with lying(blocks, slow) as slow_one, lying(blocks, no_streams) as honest:
        report = fetch(store, index, root, [peer_at(slow_one.url), peer_at(honest.url)])
    assert contents(store, root) == blocks
    assert {refusal.peer for refusal in report.refused} == {slow_one.url}
    assert "slow" in report.refused[0].reason


def test_a_stream_that_stalls_is_met_from_the_end(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=40)
    blocks = contents(origin, root)

    def stalling(talk: Exchange) -> None:
        if not talk.is_car:
            talk.honest()
            return
        parts = talk.server.sections(talk.cid)
        talk.head(content_type=CAR, content_length=sum(map(len, parts)))
        talk.send(b"".join(parts[:20]))
        talk.hang()

    store = MemoryStore()
    with lying(blocks, stalling) as first, lying(blocks, no_streams) as second:
        report = fetch(store, index, root, [peer_at(first.url), peer_at(second.url)])
    assert contents(store, root) == blocks
    assert all(source.blocks for source in report.sources)
    assert {refusal.peer for refusal in report.refused} <= {first.url}


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_source_that_failed_is_asked_again_but_not_for_ever(index: Index, peer_at: PeerAt, fails: int) -> None:
    origin, root = conversation(blocks=3)
    blocks = contents(origin, root)
    victim = list(blocks)[-1]  # wanted last and alone, so that failures come in a row
    left = threading.Semaphore(fails)

    def failing(talk: Exchange) -> None:
        early(talk) if talk.cid == victim and left.acquire(blocking=False) else no_streams(talk)

    store = MemoryStore()
    with lying(blocks, failing) as server:
        if fails == 3:
            with pytest.raises(PeerUnreachable, match=str(victim)):
                fetch(store, index, root, [peer_at(server.url)])
            assert not store.has(root)
            return
        report = fetch(store, index, root, [peer_at(server.url)])
    assert contents(store, root) == blocks
    assert len(report.refused) == fails
    assert report.sources[0].state == "ok"


def test_a_source_that_failed_rests_first_and_longer_each_time(peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=3)
    blocks = contents(origin, root)
    first, victim = list(blocks)[-2:]
    now_s, asked_s = [0.0], list[float]()

    def failing(talk: Exchange) -> None:
        if talk.cid == victim:
            asked_s.append(now_s[0])
        early(talk) if talk.cid == victim and len(asked_s) < 3 else no_streams(talk)

    def pass_time() -> None:
        now_s[0] += 0.06

    with lying(blocks, failing) as server:
        sources = Sources([peer_at(server.url)], 1 << 20, lambda: now_s[0])
        sources.turn_to(root, pass_time)
        for cid in (first, victim):  # one that never gave anything would not be asked again
            pile = Few([cid])
            sources.bring(pile)
            assert pile.came == {cid: blocks[cid]}
        sources.close()
    assert len(asked_s) == 3
    assert asked_s[1] - asked_s[0] >= 0.1
    assert asked_s[2] - asked_s[1] >= 0.4


def test_several_sources_are_asked_only_for_what_is_missing(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=40)
    blocks = contents(origin, root)
    lost = list(blocks)[3::4]
    store = MemoryStore()
    store.put_many(blocks.items())
    store.delete_many(lost)
    with lying(blocks, no_streams) as one, lying(blocks, no_streams) as two:
        report = fetch(store, index, root, [peer_at(one.url), peer_at(two.url)])
        asked = {
            Cid.parse(target.split("/")[2].split("?")[0]) for target in one.targets + two.targets if "raw" in target
        }
    assert asked == set(lost)
    assert report.blocks_fetched == len(lost)
