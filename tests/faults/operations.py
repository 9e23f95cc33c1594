"""Puts and deletes that another process does one after the other; apart from its test, to be imported in no time."""

from dataclasses import dataclass
from pathlib import Path

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests.faults.scenarios import Say


@dataclass(frozen=True)
class Operations:
    """Does each step and says when it is done."""

    steps: tuple[tuple[bool, tuple[tuple[Cid, bytes], ...]], ...]
    """Whether to put or to delete, and which blocks."""

    def __call__(self, folder: Path, say: Say) -> None:
        with DiskStore(folder / "store") as store:
            for puts, made in self.steps:
                if puts:
                    store.put_many(made)
                else:
                    store.delete_many(cid for cid, _ in made)
                say(None)

    def after(self, done: int) -> dict[Cid, bytes]:
        """What a store holds after the first `done` of them."""
        oracle: dict[Cid, bytes] = {}
        for puts, made in self.steps[:done]:
            for cid, data in made:
                if puts:
                    oracle[cid] = data
                else:
                    oracle.pop(cid, None)
        return oracle
