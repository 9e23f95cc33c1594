"""A sealed conversation in a store of its own, for tests."""

from dataclasses import dataclass

from cyberkv.cybergraph.access import ContentKey, Identity, OpenedTable, PublicIdentity, Sealing, make_grant
from cyberkv.cybergraph.access.page import open_page
from cyberkv.cybergraph.access.pagetable import Manifest, Page
from cyberkv.cybergraph.chain import load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import Grant, Model, Sealed
from cyberkv.cybergraph.store import MemoryStore, Store

ISSUER, READER, OTHER = (Identity(bytes([number]) * 32) for number in (1, 2, 3))
LINEAGE = bytes(range(16))
KEY = ContentKey(bytes(range(32)))


@dataclass(frozen=True)
class Published:
    """What a sealed publication consists of."""

    store: MemoryStore
    """Everything that left, and nothing else."""
    root: Cid
    sealed: Sealed
    grant: Grant
    key: ContentKey

    def table(self) -> OpenedTable:
        return OpenedTable(self.sealed, self.key, self.store.get(self.sealed.manifest))

    def manifest(self) -> Manifest:
        """The first page, opened."""
        return Manifest.decode(self._opened(self.sealed.manifest))

    def page(self) -> Page:
        """The page after it, opened."""
        return Page.decode(self._opened(self.manifest().pages[0].cid))

    def _opened(self, page: Cid) -> bytes:
        return open_page(self.key, self.sealed.commitment, self.store.get(page))


def publish(
    home: Store,
    conversation: Cid,
    *,
    key: ContentKey = KEY,
    epoch: int = 1,
    alg: int = 1,
    readers: tuple[PublicIdentity, ...] = (READER.public(),),
) -> Published:
    root = load_root(home, conversation)
    commitment = key.commitment(ISSUER.public().signing, LINEAGE, epoch)
    sealing = Sealing(home, root, Model.decode(home.get(root.model)), key, commitment, alg)
    out = MemoryStore()
    for batch in sealing.blocks():
        out.put_many(batch)
    grant = make_grant(ISSUER, key, readers, lineage=LINEAGE, epoch=epoch, root=sealing.manifest, alg=alg)
    sealed = Sealed(alg, LINEAGE, epoch, commitment, grant.cid(), sealing.manifest, sealing.pinset)
    out.put_node(grant)
    return Published(out, out.put_node(sealed), sealed, grant, key)
