"""Publish a conversation with a receipt, and fetch one by its receipt."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..access.identity import Identity
from ..access.receipt import check_receipt, common_domain, make_receipt
from ..cid import Buffer, Cid
from ..index import Index
from ..nodes import Conversation, Receipt
from ..peers.base import Peer
from ..peers.kubo import KuboReport, KuboRpc, KuboUpload, Part
from ..store.base import Store
from .fetch import FetchReport, fetch, nothing
from .head import Begin
from .plan import Item, PublishPlan
from .progress import SILENT, Progress
from .single import bring_node


def sign_plan(index: Index, plan: PublishPlan, producer: Identity, code: str, prev: Cid | None) -> Receipt:
    """Sign what a plan makes public. It names a numeric domain if every block was computed here in that one."""
    blocks = (item.cid for item in plan.items if item.kind == "block")
    return make_receipt(producer, plan.conversation, code, common_domain(index, blocks), prev)


def with_receipt(index: Index, plan: PublishPlan, receipt: Receipt) -> PublishPlan:
    """Give the plan with the receipt on top: as one graph, whose root is the receipt."""
    cid, data = receipt.cid(), receipt.encode()
    return replace(
        plan, root=cid, items=(Item(cid, "receipt", len(data)), *plan.items), made=(*plan.made, (cid, data)),
        public_already=plan.public_already + index.is_public(cid),
    )  # fmt: skip


def pin_receipt(receipt: Receipt, rpc: KuboRpc, name: str) -> KuboReport:
    """Send the receipt of a conversation that a node has pinned as `name`, and pin it there as well.

    Raises as `publish_kubo`.
    """
    data, cid = receipt.encode(), receipt.cid()

    def read(_start: int, _stop: int) -> Iterator[tuple[Cid, Buffer]]:
        yield cid, data

    upload = KuboUpload(rpc)
    upload.finish(Part(cid, None, [(cid, len(data))], read), name, receipt.root)
    return upload.close(cid)


def fetch_signed(
    store: Store,
    index: Index,
    cid: Cid,
    peers: Sequence[Peer],
    heard: Callable[[Receipt], None],
    *,
    progress: Progress = SILENT,
    most_bytes: int | None = None,
    free_bytes: int | None = None,
    begin: Begin = nothing,
) -> FetchReport:
    """Fetch what a receipt signs. The report's root is the conversation.

    `heard` is given the receipt once its signature was found to be good, before anything else moves; `begin` as in
    `fetch`. Raises as `fetch` and `check_receipt`.
    """
    receipt = Receipt.decode(store.get(cid)) if store.has(cid) else bring_node(cid, peers, Receipt)
    check_receipt(receipt)
    heard(receipt)

    def begun(root: Cid, conversation: Conversation) -> None:
        check_receipt(receipt, conversation)
        begin(root, conversation)

    report = fetch(
        store, index, receipt.root, peers, progress=progress, most_bytes=most_bytes, free_bytes=free_bytes,
        signer=receipt.producer, begin=begun,
    )  # fmt: skip
    store.put_node(receipt)
    return report
