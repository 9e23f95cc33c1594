"""Element types: what is stored is little-endian, named in the identity, and resumes bit-equal."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from cyberkv.cybergraph.errors import IdentityMismatch, UnsafeNumerics
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.geometry import Geometry, KvDtype
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.quant import DTYPES
from cyberkv.runtime.sampling import Sampling

TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(120)]

GOLDEN = {
    "f32": "0000803f000000c00000403f",
    "bf16": "803f00c0403f",
    "f16": "003c00c0003a",
}  # 1.0, -2.0, 0.75


@pytest.mark.parametrize("dtype", GOLDEN)
def test_leaves_are_little_endian(dtype: KvDtype) -> None:
    pool = Pool(Geometry(1, 1, 3, block_size=1, layers_per_leaf=1, dtype=dtype), 1)
    row = pool.allocate()
    pool.rows[row, 0, 0, 0, 0] = torch.tensor([1.0, -2.0, 0.75], dtype=DTYPES[dtype])
    assert bytes(pool.leaves(row)[0]).hex() == GOLDEN[dtype] + "00" * (len(GOLDEN[dtype]) // 2)


@pytest.fixture
def typed_engine(tiny: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[[KvDtype], Engine]]:
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        registry = Registry(tmp_path / "models")

        def engine(dtype: KvDtype) -> Engine:
            return build_engine(registry.load(registry.add(tiny("llama"), name=dtype, dtype=dtype)), store, index)

        yield engine


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type_resumes_bit_equal_or_says_why_not(
    dtype: KvDtype, typed_engine: Callable[[KvDtype], Engine]
) -> None:
    engine = typed_engine(dtype)
    live = Live(engine)
    if engine.domain.broken:  # what the known-answer test finds depends on the machine; f32 has to hold everywhere
        assert dtype != "f32"
        with pytest.raises(UnsafeNumerics):
            live.append(TOKENS)
        return
    live.append(TOKENS[:100])
    list(live.generate(10, Sampling()))
    again = resume(engine, checkpoint(live, title="t", created=""))
    assert torch.equal(again.next_logits(), live.next_logits())
    assert engine.domain.name.startswith(dtype)


def test_another_element_type_is_refused_by_name(typed_engine: Callable[[KvDtype], Engine]) -> None:
    live = Live(typed_engine("f32"))
    live.append(TOKENS)
    root = checkpoint(live, title="t", created="")
    with pytest.raises(IdentityMismatch) as caught:
        resume(typed_engine("bf16"), root)
    assert (caught.value.data["field"], caught.value.data["got"]) == ("kv_dtype", "f32")
