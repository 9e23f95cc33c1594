"""What is visible of each class of content at each place: this home, its gateway, a CAR file, a Kubo node."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.chain import block_cids, closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import NotPublic
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.peers.kubo import KuboRpc, RpcAddress
from cyberkv.cybergraph.policy import Span
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import plan_publish, publish_car, publish_here
from cyberkv.cybergraph.transfer.kubo import publish_kubo
from cyberkv.cybergraph.transfer.publish import Outgoing
from cyberkv.cybergraph.transfer.sealed import publish_sealed
from tests.access.sealed import ISSUER, READER
from tests.wire.asking import asking
from tests.wire.conftest import running
from tests.wire.kubo_node import KuboNode, NodeServer
from tests.wire.synthetic import BLOCK_SIZE, record

BLOCKS = 5
CUT = 2 * BLOCK_SIZE + 1
"""One token into the third block."""
SPANS = [Span(0, CUT, "public"), Span(CUT, CUT + 2, "private"), Span(CUT + 2, BLOCKS * BLOCK_SIZE + 2, "public")]


@dataclass
class Home:
    store: MemoryStore
    index: Index
    root: Cid
    folder: Path

    def plan(self, spans: list[Span] | None) -> Outgoing:
        return plan_publish(self.store, self.index, self.root, "public", spans)

    def seal(self) -> Outgoing:
        state = Lineage.begin("talk", ISSUER.public().signing, "", alg=1, kem="x25519")
        state = state.with_reader("reader", READER.public())
        return publish_sealed(self.store, self.index, self.root, state, ISSUER)[1]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    store = MemoryStore()
    with Index(tmp_path / "index") as index:
        record(store, blocks=BLOCKS + 2, seed="other")
        yield Home(store, index, record(store, blocks=BLOCKS), tmp_path)


Class = Callable[[Home], Outgoing | None]


def private(home: Home) -> None:
    """Never published: whoever asks for it without saying so is refused."""
    with pytest.raises(NotPublic):
        plan_publish(home.store, home.index, home.root, None)


def part(home: Home) -> Outgoing:
    return home.plan(SPANS)


def public(home: Home) -> Outgoing:
    return home.plan(None)


def sealed(home: Home) -> Outgoing:
    return home.seal()


def at_gateway(home: Home, outgoing: Outgoing | None) -> set[Cid]:
    if outgoing is not None and not home.index.is_public(outgoing.root):
        publish_here(home.store, home.index, outgoing)
    with running(build_app(Published(home.store, home.index))) as served:
        ask = asking(served.url)
        return {cid for cid in home.store.cids() if ask(f"/ipfs/{cid}?format=raw").status == 200}


def in_car(home: Home, outgoing: Outgoing | None) -> set[Cid]:
    if outgoing is None:
        return set()
    publish_car(home.store, outgoing, home.folder / "out.car")
    with (home.folder / "out.car").open("rb") as file:
        return {cid for cid, _ in read_car(file)}


def on_node(home: Home, outgoing: Outgoing | None) -> set[Cid]:
    node = KuboNode()
    server = NodeServer(node)
    with closing(server), closing(KuboRpc(RpcAddress.parse(server.url))) as rpc:
        if outgoing is not None and hasattr(outgoing, "conversation"):
            publish_kubo(home.store, home.index, outgoing, rpc, "talk")  # type: ignore[arg-type]
        elif outgoing is not None:  # as `ipfs dag import` does
            node.blocks = {cid: home.store.get(cid) for cid in in_car(home, outgoing)}
    return set(node.blocks)


PLACES = [at_gateway, in_car, on_node]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("kind", [private, part, public, sealed], ids=lambda kind: kind.__name__)
def test_what_each_place_shows_of_each_class(home: Home, kind: Class, place: Callable[..., set[Cid]]) -> None:
    plain = set(closure(home.store, home.root))
    model = load_root(home.store, home.root).model
    outgoing = kind(home)
    shown = place(home, outgoing)
    assert {*home.store.cids()} > plain, "this home has all of it, and another conversation"
    blocks = list(block_cids(home.store, load_root(home.store, home.root)))
    begin = {each for cid in blocks[: CUT // BLOCK_SIZE] for each in (cid, *Block.decode(home.store.get(cid)).kv)}
    expected = {"private": set(), "part": {model, *begin}, "public": plain, "sealed": set()}[kind.__name__]
    assert shown & plain == expected
    assert shown == set(outgoing.cids if outgoing else ())
    extra = [home.store.get(cid) for cid in shown - plain]
    hidden = plain - shown
    assert not any(cid.digest in data for data in extra for cid in hidden), "not even a name of what is withheld"


def test_the_part_that_is_public_ends_where_the_private_span_begins(home: Home) -> None:
    plan = plan_publish(home.store, home.index, home.root, "public", SPANS)
    whole = plan_publish(home.store, home.index, home.root, "public")
    root = plan.conversation
    assert (root.length, root.tail.kv, root.title, root.parent) == (CUT, None, "", None)
    assert [str(each) for each in plan.withheld] == [
        "tokens 9:11: private", "tokens 11:22: depends on private span 9:11"
    ]  # fmt: skip
    assert plan.bytes < whole.bytes
    assert not home.store.has(plan.root), "a plan changes nothing"
    assert {cid for cid, _ in plan.made} == {plan.root, *root.segments}
    publish_here(home.store, home.index, plan)
    assert set(closure(home.store, plan.root)) == {*plan.cids}
    again = plan_publish(home.store, home.index, home.root, "public", SPANS)
    assert (again.root, again.public_already, again.made) == (plan.root, len(plan.cids), ())


def test_marks_that_leave_all_of_it_public_change_nothing(home: Home) -> None:
    everything = [Span(0, BLOCKS * BLOCK_SIZE + 2, "public")]
    marked, plain = (plan_publish(home.store, home.index, home.root, "public", spans) for spans in (everything, None))
    assert marked == plain
    with pytest.raises(NotPublic, match="begins with private tokens 0:22"):
        plan_publish(home.store, home.index, home.root, "public", [everything[0]._replace(visibility="private")])


@pytest.mark.parametrize(("fork_at", "named"), [(CUT, True), (CUT + 1, False)])
def test_a_public_parent_is_named_only_by_what_goes_on_from_it(home: Home, fork_at: int, named: bool) -> None:
    parent = home.root
    recorded = load_root(home.store, record(home.store, blocks=BLOCKS, parent=parent))
    child = home.store.put_node(replace(recorded, fork_at=fork_at))
    private = plan_publish(home.store, home.index, child, "public", SPANS)
    assert private.conversation.parent is None
    assert next(each.cid for each in private.withheld) == (parent if named else None)
    home.index.publish(parent, closure(home.store, parent))
    plan = plan_publish(home.store, home.index, child, "public", SPANS)
    assert (plan.conversation.parent, plan.conversation.fork_at) == ((parent, fork_at) if named else (None, None))
    assert {cid for cid, _ in plan.made} - {*plan.conversation.segments} == {plan.root}
