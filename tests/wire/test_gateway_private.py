"""Only what was published. The store holds a second conversation that shares a prefix with the public one."""

from collections.abc import Iterator

import pytest

from cyberkv.cybergraph.chain import block_cids, closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.app import PROBE
from cyberkv.cybergraph.gateway.pages import Pages
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.peer import ABSENT
from tests.wire.asking import BROWSER, CAR, Ask, asking
from tests.wire.conftest import running
from tests.wire.synthetic import record


@pytest.fixture(params=[False, True], ids=["bytes", "pages"])
def ask(request: pytest.FixtureRequest, store: MemoryStore, public: Cid, there: Index) -> Iterator[Ask]:
    there.publish(public, closure(store, public))
    content = Published(store, there)
    with running(build_app(content, Pages(content) if request.param else None)) as served:
        yield asking(served.url)


def test_what_is_private_cannot_be_told_from_what_is_absent(ask: Ask, store: MemoryStore, roots: list[Cid]) -> None:
    longer, public = roots
    private = set(closure(store, longer)) - set(closure(store, public))
    assert len(private) > 4
    assert all(store.has(cid) for cid in private)
    leaf, block = (next(cid for cid in private if cid.codec == codec) for codec in ("raw", "dag-cbor"))
    for cid in (leaf, block, longer):
        for form in ("?format=raw", "?format=car", "?format=car&dag-scope=block", "", "?format=dag-json", "/kv/0",
                     "/tail/../x?format=raw", "/?filename=a&download=true"):  # fmt: skip
            for options in ({}, {"method": "HEAD"}, {"if_none_match": "*"}, {"if_none_match": f'"{cid}.raw"'},
                            {"cache_control": "only-if-cached"}, {"range": "bytes=0-9"}, {"accept": BROWSER},
                            {"range": "bytes=0-9", "if_range": f'"{cid}.raw"'}, {"method": "OPTIONS"}):  # fmt: skip
                options_of_nothing = {key: value.replace(str(cid), str(ABSENT)) for key, value in options.items()}
                secret = ask(f"/ipfs/{cid}{form}", **options)
                nothing = ask(f"/ipfs/{ABSENT}{form}", **options_of_nothing)
                expected = 204 if "method" in options and options["method"] == "OPTIONS" else 404
                assert secret.status == nothing.status == (412 if "cache_control" in options else expected)
                assert secret.headers == nothing.headers
                assert secret.body.replace(str(cid).encode(), b"") == nothing.body.replace(str(ABSENT).encode(), b"")


def test_no_answer_names_anything_private(ask: Ask, store: MemoryStore, roots: list[Cid], there: Index) -> None:
    longer, public = roots
    there.set_head("my secret talk", longer, "2026-01-01T00:00:00Z")
    private = set(closure(store, longer)) - set(closure(store, public))
    here = [f"/ipfs/{public}{form}" for form in ("", "?format=raw", "?format=car", "?format=dag-json", "?format=json",
                                                 "/segments/0", "/parent", "/nothing", "/tail/tokens/0")]  # fmt: skip
    away = [f"/ipfs/{longer}/segments/0?format=dag-json", f"/ipfs/{ABSENT}?format=raw", "/", "/ipfs/x"]
    for path in (*here, *away, f"/ipfs/{PROBE}?format=car"):
        answer = ask(path, accept=BROWSER)
        own = path.encode()  # what was asked may be repeated
        everything = answer.body + repr(answer.headers).encode()
        assert b"secret" not in everything
        for cid in private:
            assert cid not in everything
            assert str(cid).encode() in own or str(cid).encode() not in everything


def test_a_path_to_something_private_ends_as_one_to_something_absent(
    ask: Ask, store: MemoryStore, roots: list[Cid], there: Index
) -> None:
    private = roots[0]
    absent = Cid.of(b"nobody has this", "dag-cbor", "sha2-256")
    forks = [record(store, blocks=2, seed="a", parent=parent) for parent in (private, absent)]
    for fork in forks:
        there.publish(fork, closure(store, fork))
    for path in ("/parent", "/parent/", "/parent/segments/0", "/parent/model"):
        for options in (
            {},
            {"accept": CAR},
            {"accept": BROWSER},
            {"method": "HEAD"},
            {"cache_control": "only-if-cached"},
        ):
            secret, nothing = (ask(f"/ipfs/{fork}{path}", **options) for fork in forks)
            assert secret.status == nothing.status == (412 if "cache_control" in options else 404)
            assert secret.headers == nothing.headers
            assert secret.body.replace(str(private).encode(), b"") == nothing.body.replace(str(absent).encode(), b"")
    there.publish(private, closure(store, private))
    assert ask(f"/ipfs/{forks[0]}/parent").body == store.get(private)


def test_shared_blocks_of_a_private_conversation_are_public_by_the_other(
    ask: Ask, store: MemoryStore, roots: list[Cid]
) -> None:
    longer, _ = roots
    first, *_, last = block_cids(store, load_root(store, longer))
    assert ask(f"/ipfs/{first}?format=raw").status == 200
    assert ask(f"/ipfs/{last}?format=raw").status == 404
