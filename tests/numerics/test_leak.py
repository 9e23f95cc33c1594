"""Why the default is private: keys of the first layer are the text. And what sealing changes about that."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cyberkv.cybergraph.chain import load_root, walk
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.transfer.fetch_sealed import fetch_sealed
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from tests.access.sealed import publish
from tests.contracts.store_peer import StorePeer

Engines = Callable[..., Engine]
Keys = npt.NDArray[np.float32]
SECRET = [ord(letter) for letter in "my card is 4000-1234, its code 821; tell nobody!"]
VOCABULARY = 250


def recorded(engine: Engine, tokens: list[int], title: str) -> Cid:
    live = Live(engine)
    live.append(tokens)
    return checkpoint(live, title=title, created="")


def first_layer_keys(engine: Engine, leaf: bytes | memoryview) -> Keys:
    """K of layer 0, a row for each token, from the bytes of a block's first leaf."""
    geometry = engine.geometry
    layers, shape = geometry.leaf_layers[0][1], (2, geometry.block_size, geometry.num_kv_heads * geometry.head_dim)
    return np.frombuffer(leaf, "<f4").reshape(layers, *shape)[0, 0]


def guessed(keys: Keys, table: Keys) -> list[int]:
    """The token of the vocabulary whose key lies nearest, row by row."""
    finite = np.nan_to_num(keys, posinf=0, neginf=0).clip(-1e6, 1e6)
    return [int(np.abs(table - row).sum(axis=1).argmin()) for row in finite]


@pytest.fixture
def table(tiny_engine: Engines) -> Keys:
    """What anybody who has the model can compute: the key of each token, here from one run over all of them."""
    engine = tiny_engine()
    root = recorded(engine, [*range(VOCABULARY), *range(6)], "vocabulary")
    blocks = [step.block for step in walk(engine.store, load_root(engine.store, root))]
    return np.concatenate([first_layer_keys(engine, engine.store.get(block.kv[0])) for block in blocks])[:VOCABULARY]


def test_one_layer_of_keys_gives_back_every_token_and_sealed_leaves_give_none(
    tiny_engine: Engines, table: Keys
) -> None:
    engine = tiny_engine()
    root = recorded(engine, SECRET, "secret")
    leaves = [step.block.kv[0] for step in walk(engine.store, load_root(engine.store, root))]
    public = [token for leaf in leaves for token in guessed(first_layer_keys(engine, engine.store.get(leaf)), table)]
    assert public == SECRET[: len(public)]
    assert len(public) == 48

    shown = publish(engine.store, root).store
    sizes = {len(engine.store.get(leaf)) + 20 for leaf in leaves}
    sealed = [data for cid in shown.cids() if cid.codec == "raw" and len(data := shown.get(cid)) in sizes]
    assert len(sealed) >= len(leaves)
    hits = [
        sum(
            a == b
            for a, b in zip(guessed(first_layer_keys(engine, data[4:-16]), table), SECRET[at : at + 16], strict=True)
        )
        for data in sealed
        for at in range(0, 48, 16)
    ]
    assert max(hits) <= 3, "chance: one of sixteen now and then"


def test_a_resume_from_a_sealed_fetch_is_bit_equal(tiny_engine: Engines) -> None:
    engine, theirs = tiny_engine(), tiny_engine(home="theirs")
    live = Live(engine)
    live.append(SECRET[:45])
    root = checkpoint(live, title="secret", created="")
    published = publish(engine.store, root)
    peer = StorePeer(published.store)
    done = fetch_sealed(theirs.store, theirs.index, published.root, [peer], lambda *_: published.key)
    resumed = resume(theirs, done.root)
    assert torch.equal(resumed.next_logits(), live.next_logits())
    assert resumed.counts.tokens_reused == 45
    control = Live(theirs)
    control.append([*SECRET[:44], SECRET[44] + 1])
    assert not torch.equal(control.next_logits(), live.next_logits())
