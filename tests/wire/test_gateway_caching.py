"""What caches may keep: single blocks for ever, a stream only where nothing can come to it later."""

from pathlib import Path

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.foreign import AnyCid
from cyberkv.cybergraph.gateway import Published, Several, build_app
from cyberkv.cybergraph.gateway.carcontent import CarContent
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.ipld import write_value
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.asking import Ask, asking, foreign, write_any_car
from tests.wire.conftest import running
from tests.wire.proving_by_hand import bearer, posting, token
from tests.wire.sealed_home import Home, guarding
from tests.wire.synthetic import record

FOR_EVER = "public, max-age=29030400, immutable"
AGAIN = "public, no-cache"


def kept(ask: Ask, cid: AnyCid, more: str = "") -> str:
    return ask(f"/ipfs/{cid}?format=car{more}", "HEAD").headers["cache-control"]


def asked_twice(ask: Ask, cid: AnyCid) -> tuple[str, int]:
    """The tag of a stream, and the status of the answer to whoever has it."""
    tag = ask(f"/ipfs/{cid}?format=car").headers["etag"]
    return tag, ask(f"/ipfs/{cid}?format=car", if_none_match=tag).status


def test_of_a_file_that_lacks_something_a_fuller_one_may_be_served_later(tmp_path: Path, there: Index) -> None:
    leaf, late = ((foreign("raw", data), data) for data in (b"leaf", b"late"))
    node = write_value("dag-cbor", [leaf[0], late[0]])
    root = foreign("dag-cbor", node)
    tags, bodies = [], []
    for name, blocks in (("cut", [(root, node), leaf]), ("whole", [(root, node), leaf, late])):
        write_any_car(tmp_path / name, root, blocks)
        with (
            CarContent(tmp_path / name) as content,
            running(build_app(Several([Published(MemoryStore(), there), content]))) as served,
        ):
            ask = asking(served.url)
            assert kept(ask, root) == kept(ask, root, "&car-dups=y") == AGAIN
            for single in (kept(ask, root, "&dag-scope=block"), kept(ask, leaf[0]),
                           ask(f"/ipfs/{root}?format=raw").headers["cache-control"]):  # fmt: skip
                assert single == FOR_EVER
            tag, status = asked_twice(ask, root)
            assert status == 304
            assert all(ask(f"/ipfs/{root}?format=car", if_none_match=other).status == 200 for other in tags)
            assert ask(f"/ipfs/{root}?format=car", "HEAD").headers["etag"] == tag
            tags.append(tag)
            bodies.append(ask(f"/ipfs/{root}?format=car").body)
    assert [b"late" in body for body in bodies] == [False, True]


def test_a_parent_may_be_published_later(there: Index) -> None:
    store = MemoryStore()
    first = record(store, blocks=1, seed="a")
    second = record(store, blocks=2, seed="a", parent=first)
    third = record(store, blocks=3, seed="a", parent=second)

    def publish(root: AnyCid) -> None:
        assert root in (first, second, third)
        there.publish(root, closure(store, root))  # type: ignore[arg-type]

    publish(third)
    with running(build_app(Published(store, there))) as served:
        ask = asking(served.url)
        tags = []
        for now_public, allowed in ((third, AGAIN), (second, AGAIN), (first, FOR_EVER)):
            publish(now_public)
            assert kept(ask, third) == allowed
            tag, status = asked_twice(ask, third)
            assert status == 304
            assert all(ask(f"/ipfs/{third}?format=car", if_none_match=other).status == 200 for other in tags)
            tags.append(tag)
        assert {kept(ask, cid) for cid in closure(store, third)} == {FOR_EVER}
        store.delete_many([first])
        assert kept(ask, third) == AGAIN


def test_what_is_sealed_may_be_given_later_and_never_to_a_shared_cache(there: Index) -> None:
    home = Home(MemoryStore(), there)
    talk = home.seal("a")
    public = home.show("b")
    with guarding(home) as (_, door, _):
        ask = asking(door.audience)
        stranger = ask(f"/ipfs/{talk.root}?format=car")
        assert (stranger.headers["cache-control"], kept(ask, public)) == (AGAIN, FOR_EVER)
        allowed = bearer(token(posting(door.audience), talk))
        reader = ask(f"/ipfs/{talk.root}?format=car", if_none_match=stranger.headers["etag"], **allowed)
        assert (reader.status, reader.headers["cache-control"]) == (200, "private, no-cache")
        assert len(reader.body) > len(stranger.body)
        leaf = next(cid for cid in talk.withheld() if cid.codec == "raw")
        given = ask(f"/ipfs/{leaf}?format=raw", **allowed)
        assert given.headers["cache-control"] == FOR_EVER.replace("public", "private")
