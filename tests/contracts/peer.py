"""What every peer does. Subclass it and say how a peer is made that offers given blocks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, PeerError
from cyberkv.cybergraph.nodes import links
from cyberkv.cybergraph.peers import Peer
from tests.wire.synthetic import contents, conversation

ABSENT = Cid.of(b"nobody has this", "raw", "blake3")


class PeerContract(ABC):
    @abstractmethod
    def offer(self, blocks: Mapping[Cid, bytes], root: Cid) -> Peer:
        """Make a peer that holds exactly `blocks`, whose bytes need not fit their CIDs. The test closes it."""

    @pytest.fixture
    def blocks(self) -> dict[Cid, bytes]:
        return contents(*conversation(blocks=3))

    @pytest.fixture
    def root(self, blocks: dict[Cid, bytes]) -> Cid:
        return next(iter(blocks))

    def test_gives_all_that_is_asked_and_no_more(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        with self.offer(blocks, root) as peer:
            assert dict(peer.get_many(list(blocks))) == blocks
            some = list(blocks)[1::2]
            got = list(peer.get_many(some))
        assert sorted(cid for cid, _ in got) == sorted(some)

    def test_an_empty_question_has_an_empty_answer(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        with self.offer(blocks, root) as peer:
            assert list(peer.get_many([])) == []

    def test_says_what_it_lacks_after_giving_the_rest(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        got: list[tuple[Cid, bytes]] = []
        with self.offer(blocks, root) as peer, pytest.raises(BlockNotFound) as caught:
            got.extend(peer.get_many([ABSENT, *blocks]))
        assert dict(got) == blocks
        assert caught.value.data["cids"] == [str(ABSENT)]

    def test_wrong_bytes_never_come_out(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        victim = list(blocks)[-1]
        wrong = {**blocks, victim: bytes([blocks[victim][0] ^ 1]) + blocks[victim][1:]}
        with self.offer(wrong, root) as peer, pytest.raises((DigestMismatch, PeerError)):
            list(peer.get_many([victim]))
        with self.offer(blocks, root) as peer:
            assert list(peer.get_many([victim])) == [(victim, blocks[victim])]

    def test_can_be_left_half_way_and_asked_again(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        with self.offer(blocks, root) as peer:
            for cid, data in peer.get_many(list(blocks)):
                assert blocks[cid] == data
                break
            assert dict(peer.get_many(list(blocks))) == blocks

    def test_a_graph_names_parents_first(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        with self.offer(blocks, root) as peer:
            if not peer.has_dag:
                with pytest.raises(NotImplementedError):
                    peer.get_dag(root)
                return
            got = list(peer.get_dag(root))
        assert dict(got) == blocks
        assert len(got) == len(blocks)
        known = {root}
        for cid, data in got:
            assert cid in known
            known.update(links(data) if cid.codec == "dag-cbor" else ())

    def test_closing_twice_is_harmless(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        peer = self.offer(blocks, root)
        peer.close()
        peer.close()
