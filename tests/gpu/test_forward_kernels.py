"""The forward by the kernels themselves, the known-answer test on a device, and the real model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.errors import UnsafeNumerics
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.cache import Part
from cyberkv.runtime.cuda.processor import DeviceProcessor
from cyberkv.runtime.engine import build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry, smollm2_source
from cyberkv.runtime.sampling import Sampling
from tests.gpu.engines import KIND, SOUND, Engines, changed, kernels
from tests.gpu.inline import InlineDevice, Launches
from tests.numerics.together import TOKENS, State

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["llama", "smollm3-window"])
def test_the_kernels_give_the_tokens_of_the_host_and_bytes_by_the_text_alone(family: str, engines: Engines) -> None:
    host, (one, other) = Live(engines.host(family)), (
        Live(engines.device(family, functions=kernels()).engine) for _ in range(2)
    )  # fmt: skip
    host.append(TOKENS[:32])
    one.append(TOKENS[:32])
    other.append(TOKENS[:16])
    other.append(TOKENS[16:31])
    other.decode(TOKENS[31])
    assert one.blocks == other.blocks
    assert torch.allclose(State.of(one).rows.cpu(), State.of(host).rows, atol=1e-4)
    tokens = list(host.generate(3, Sampling()))
    assert list(one.generate(3, Sampling())) == list(other.generate(3, Sampling())) == tokens


def by_start(q: torch.Tensor, kv: torch.Tensor, tables: torch.Tensor, starts: torch.Tensor, *parts: Any) -> Any:
    """Another rule: last bits follow from where a chunk begins."""
    factors = 1 + (starts > 0).float()[:, None, None, None] * 2.0**-20
    return reference.paged_prefill(q, kv, tables, starts, *parts) * factors


def test_the_known_answer_test_runs_on_the_device_and_names_it(engines: Engines) -> None:
    """Rows alone are provisional whatever they are, and what a machine with another rule computes is not sealed."""
    domain = engines.device(domain=None).engine.domain
    assert domain.name.startswith(f"f32-{KIND}-")
    assert (domain.broken, domain.scattered, domain.floor_rows) == (None, None, 16)
    assert domain.rows.startswith(f"{domain.name}/1-")
    assert engines.device(domain=None).engine.domain == domain
    naive = engines.device(domain=None, functions=changed(paged_prefill=by_start)).engine
    assert naive.domain.broken is not None
    with pytest.raises(UnsafeNumerics, match="other bytes"):
        Live(naive).append(TOKENS[:16])


def test_the_scores_of_the_real_model_are_those_of_transformers(tmp_path: Path) -> None:
    """SmolLM2 in float32, on its last positions and after single rows; bounds as for the host."""
    from transformers import AutoModelForCausalLM

    from cyberkv.cybergraph.index import Index

    registry = Registry(tmp_path / "models")
    record = registry.add(smollm2_source(), name="smollm2")
    device = InlineDevice(left_bytes=8 << 30)
    processor = DeviceProcessor(device, Launches(device, reference), KIND, memory_bytes=64 << 20, host_bytes=0)
    loaded = registry.load(record, processor.arithmetic)
    assert loaded.text is not None
    tokens = loaded.text.encode("The capital of France is", special=False)
    with Index(tmp_path / "index") as index:
        engine = build_engine(loaded, MemoryStore(), index, domain=SOUND, processor=processor)
        sequence = engine.new_sequence()
        sequence.extend_table(len(tokens))
        hidden = engine.memory.run(engine.decoder, [Part(sequence.table, 0, tuple(tokens[:-1]))])  # type: ignore[attr-defined]
        last = engine.memory.run(  # type: ignore[attr-defined]
            engine.decoder, [Part(sequence.table, len(tokens) - 1, tuple(tokens[-1:]))], provisional=True
        )
        got = engine.decoder.logits_of(torch.cat((hidden, last)))
    folder = registry.weights_folder(record)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    assert (got - expected).abs().max() < 2e-3
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    with torch.no_grad():
        control = model(torch.tensor([tokens[::-1]])).logits[0]
    assert (got - control).abs().max() > 1
