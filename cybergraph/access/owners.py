"""Who computed or signed the blocks of a locked conversation, kept while the index has let go of them.

A sealed copy does not say it, and opening one may not make foreign blocks one's own or one's own foreign. A note names
neither a block nor a token: only how many blocks in a row the index held under which domains.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from ..chain import block_cids, load_root
from ..chain import tokens as tokens_of
from ..cid import Cid
from ..errors import Corrupt
from ..index import Index, IndexEntry
from ..index.records import MAX_DOMAIN_BYTES
from ..limits import MAX_NODE_BYTES
from ..nodes.base import Nested, Node, Record
from ..nodes.kinds import Listing, Text, Uint
from ..prefix import prefix_keys
from ..private import make_private_folder, open_regular, write_private
from ..store.base import Store

_MAX_OWNERS: Final = 256
_MAX_RUNS: Final = 4096


@dataclass(frozen=True, slots=True)
class Run(Record):
    """Blocks in a row that the index held under the same domains."""

    blocks: Annotated[int, Uint(least=1)]
    domains: Annotated[tuple[str, ...], Listing(Text(MAX_DOMAIN_BYTES), _MAX_OWNERS)]


@dataclass(frozen=True, slots=True)
class Owners(Node):
    """The domains of all blocks of one conversation, in order."""

    runs: Annotated[tuple[Run, ...], Listing(Nested(Run), _MAX_RUNS)]

    TYPE: ClassVar = "cyberkv/owners"

    @classmethod
    def of(cls, store: Store, index: Index, root: Cid) -> Self:
        """Read from the index what is known of a conversation. Raises as `load_root`."""
        owners = (
            tuple(each.domain for each in index.beside(block) if each.block == block)
            for block in block_cids(store, load_root(store, root))
        )
        return cls(tuple(Run(len([*run]), domains) for domains, run in groupby(owners)))

    def give_back(self, store: Store, index: Index, root: Cid) -> None:
        """Note in the index what was known of a conversation. Raises as `load_root`."""
        conversation = load_root(store, root)
        blocks = list(block_cids(store, conversation))
        domains: Sequence[tuple[str, ...]] = [run.domains for run in self.runs for _ in range(run.blocks)]
        keys = prefix_keys(conversation.model, tokens_of(store, conversation), conversation.block_size)
        index.add_blocks(
            IndexEntry(key, block, prev, conversation.model, domain)
            for key, block, prev, owners in zip(keys, blocks, [None, *blocks], domains, strict=False)
            for domain in owners
        )


class LockedFolder:
    """One small private file for each conversation that is locked in a home, named by its sealed root."""

    def __init__(self, path: Path) -> None:
        """Use `path`, which is made when something is to be kept."""
        self._path = path

    def keep(self, sealed: Cid, owners: Owners) -> None:
        """Note who the blocks are of, before the index lets go of them."""
        make_private_folder(self._path)
        write_private(self._path / str(sealed), [owners.encode()], sync=True)

    def owners(self, sealed: Cid) -> Owners:
        """Give what was noted, or nothing where nothing was. Raises `Corrupt` for a damaged file."""
        path = self._path / str(sealed)
        try:
            with open_regular(path) as file:
                return Owners.decode(file.read(MAX_NODE_BYTES + 1))
        except FileNotFoundError:
            return Owners(())
        except Corrupt as error:
            raise Corrupt(
                f"what is kept about the blocks of a locked conversation is damaged: {error}",
                hint=f"move {path} away: it opens then, but its blocks serve no other prompts", path=str(path),
            ) from error  # fmt: skip

    def forget(self, sealed: Cid) -> None:
        """Remove what was noted."""
        (self._path / str(sealed)).unlink(missing_ok=True)

    def keep_only(self, roots: Iterable[Cid]) -> None:
        """Remove what was noted of all but these: what nobody holds any more is never unlocked."""
        held = {str(root) for root in roots}
        for path in self._path.glob("*"):
            if not path.name.startswith(".") and path.name not in held:
                path.unlink(missing_ok=True)
