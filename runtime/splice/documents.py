"""Documents as recorded conversations: their tokens and rows, whatever block size they were recorded with."""

from collections.abc import Sequence as Items
from contextlib import suppress

from torch import Tensor

from ...cybergraph.chain import fork_root, load_root
from ...cybergraph.chain import tokens as tokens_of
from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt, IdentityMismatch, NotFound, Refused
from ...cybergraph.identity import require_same
from ...cybergraph.nodes import Conversation, Model
from ...cybergraph.prefix import prefix_keys
from ..canonical import probe
from ..checkpoint import resume
from ..engine import Engine
from ..geometry import Geometry
from ..live import Live
from ..models.registry import BLOCK_SIZES
from ..pool import Pool, on_host
from ..reblock import reblock, reblocked
from .measure import copy_rows
from .place import Origin

BLOCK_TOKENS = 64
"""Block size that documents are recorded with: a quarter of the objects, and nothing forks inside them."""


class Engines:
    """One decoder under several block sizes: each is a model identity of its own, over the same store and index."""

    def __init__(self, engine: Engine) -> None:
        """Raises `UnsupportedModel` for an engine on a device."""
        on_host(engine.pool, "splicing")
        self.main = engine
        self._made = {engine.geometry.block_size: engine}

    def sized(self, block_size: int) -> Engine:
        """Give the engine that records with `block_size`. Its rows are as many as the model has positions.

        Effects: runs the known-answer test, and puts the model node into the store. Raises `Refused`.
        """
        if block_size not in BLOCK_SIZES:
            raise Refused(
                f"blocks of {block_size} tokens, must be one of {', '.join(map(str, BLOCK_SIZES))}",
                hint="64 suits documents", block_size=block_size,
            )  # fmt: skip
        if block_size not in self._made:
            main = self.main
            model = reblocked(main.model, block_size)
            geometry = Geometry.from_model(model)
            pool = Pool(geometry, -(-main.config.max_positions // block_size) + 2)
            domain = probe(main.decoder, main.processor, geometry)
            cid = main.store.put_node(model)
            self._made[block_size] = Engine(
                main.decoder, main.processor, model, cid, main.store, main.index, pool, domain, main.pace
            )
        return self._made[block_size]

    def fitting(self, root: Conversation) -> Engine:
        """Give the engine that a conversation was made with. Raises `IdentityMismatch` naming the first axis."""
        wanted = reblocked(self.main.model, root.block_size)
        if root.model != wanted.cid():
            require_same(wanted, Model.decode(self.main.store.get(root.model), verify=root.model))
        return self.sized(root.block_size)

    def require(self, model: Cid, block_size: int) -> None:
        """Check that a model is this one in blocks of `block_size`. Raises `IdentityMismatch`."""
        wanted = reblocked(self.main.model, block_size).cid()
        if model != wanted:
            raise IdentityMismatch(
                f"the document was recorded with model {model}, this is {wanted}", field="model",
                expected=str(wanted), got=str(model),
            )  # fmt: skip

    def load(self, root_cid: Cid) -> Live:
        """Load a conversation to read its rows; close it afterwards. What is missing of it is computed.

        Raises as `resume`.
        """
        return resume(self.fitting(load_root(self.main.store, root_cid)), root_cid)

    def rows(self, root_cid: Cid, start: int, count: int) -> Tensor:
        """Give the raw rows of some tokens of a conversation.

        Shape: [count, layers, K|V, kv_heads, head_dim].
        """
        live = self.load(root_cid)
        try:
            return copy_rows(live, start + count)[start:]
        finally:
            live.close()

    def compute(self, tokens: Items[int], block_size: int) -> Tensor:
        """Give the rows of a document of which only the text is left: its blocks are stored again, with their CIDs.

        Shape as `rows`. Raises as `Live.append`.
        """
        live = Live(self.sized(block_size))
        try:
            live.append(tokens)
            return copy_rows(live, len(tokens))
        finally:
            live.close()


def load_origin(engines: Engines, root_cid: Cid, at: int) -> Origin:
    """Read what stands before the documents: its rows, and its blocks where they have this engine's size."""
    live = engines.load(root_cid)
    try:
        blocks = tuple(live.blocks) if live.engine is engines.main else ()
        return Origin(root_cid, copy_rows(live, at), blocks, live.approx)
    finally:
        live.close()


def make_findable(engine: Engine, root_cid: Cid) -> None:
    """Let the index find the blocks of a document under this engine's block size: bytes move, nothing is computed.

    The rows after its last full block are not moved; they are computed with what follows them. Does nothing for what
    is known, approximate, or not whole here.
    """
    store, index, size = engine.store, engine.index, engine.geometry.block_size
    with suppress(NotFound, Corrupt):
        root = load_root(store, root_cid)
        if root.model == engine.model_cid or root.approx is not None:
            return
        tokens = tokens_of(store, root)
        full = root.length - len(root.tail.tokens)
        keys = list(prefix_keys(engine.model_cid, tokens[: full // size * size], size))
        if len(index.lookup_chain(keys, engine.domain.name)) == len(keys):
            return
        if root.tail.tokens:
            root_cid, _ = fork_root(store, root_cid, full, block_bytes=_block_bytes(engine, root))
        reblock(store, index, root_cid, size)


def _block_bytes(engine: Engine, root: Conversation) -> int:
    return Geometry.from_model(reblocked(engine.model, root.block_size)).block_bytes
