"""Any sequence of recordings under a cap: it is never passed, and nothing that is needed here alone ever goes."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.gc import collect, find_garbage
from cyberkv.cybergraph.keeping.reach import reach
from cyberkv.cybergraph.keeping.room import Room, write_cap
from cyberkv.cybergraph.store import DiskStore
from tests.contracts.synthetic import make_conversation

NUMBERS = st.integers(0, 5)
CAP_BYTES = 30 * 4096


class CapMachine(RuleBasedStateMachine):
    """Conversations of up to five leaves, six of them, in a store that has room for about four."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.refused = self.evicted = 0
        self.open()
        write_cap(self.store.path, CAP_BYTES)

    def open(self) -> None:
        self.store, self.index = DiskStore(self.path / "store"), Index(self.path / "index")
        self.room = Room(self.store, lambda: self.index, lambda *_: True)

    def close(self) -> None:
        self.evicted += self.room.evicted_leaves
        self.room.close()
        self.index.close()
        self.store.close()

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    @rule(number=NUMBERS, held=st.sampled_from(["named", "fetched", "nobody's"]))
    def record(self, number: int, held: str) -> None:
        try:
            root = make_conversation(self.store, [number] * 10, flavour=str(number), title=str(number))
        except TierFull:
            self.refused += 1
            return
        if held != "nobody's":
            self.index.set_head(str(number), root, "")
        if held == "fetched":
            self.index.add_sources(root, ["http://127.0.0.1:1"])
        assert chain.missing(self.store, root) == []  # whatever was here before counts as used

    @rule()
    def name_what_lies_about(self) -> None:
        """Put a forgotten conversation to use again, without a look at its leaves."""
        here = set(self.store.cids())
        for root, conversation in find_garbage(self.store, self.index).conversations.items():
            if reach(self.store, [root]) <= here:
                self.index.set_head(conversation.title, root, "")

    @precondition(lambda self: self.index.heads())
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.index.drop(data.draw(st.sampled_from([head.name for head in self.index.heads()])))

    @precondition(lambda self: self.index.heads())
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        root = data.draw(st.sampled_from(self.index.heads())).root
        if not chain.missing(self.store, root):
            self.index.pin(root, "")

    @precondition(lambda self: self.index.pins())
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.index.unpin(data.draw(st.sampled_from(sorted(self.index.pins()))))

    @rule()
    def gc(self) -> None:
        collect(self.store, self.index)

    def only_here(self) -> set[Cid]:
        return set(self.index.roots()) - (self.index.sources().keys() - self.index.pins().keys())

    @invariant()
    def within_the_cap(self) -> None:
        assert self.store.used_bytes() <= CAP_BYTES

    @invariant()
    def what_is_needed_is_here(self) -> None:
        assert chain.missing(self.store, *self.only_here()) == []
        assert list(fsck(self.store, self.index)) == []

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.path)


TestCap = CapMachine.TestCase
TestCap.settings = settings(max_examples=25, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow])


def test_control_the_cap_is_met() -> None:
    """Six conversations do not fit, so the machine above really evicts and refuses."""
    machine = CapMachine()
    for number in range(6):
        machine.record(number, "fetched")
        machine.reopen()
        machine.within_the_cap()
    assert machine.evicted > 0
    for number in range(6):
        machine.record(number, "named")
        machine.within_the_cap()
    assert machine.refused > 0
    machine.teardown()
