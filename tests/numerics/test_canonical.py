"""The canonical rule: the same rows whatever the schedule, and a probe that notices where it does not hold."""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cyberkv.cybergraph.errors import UnsafeNumerics
from cyberkv.runtime import rotated as rotated_module
from cyberkv.runtime.attention.panels import PANEL_KEYS, panel_attention
from cyberkv.runtime.canonical import canonical_step, probe, single_step
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.decoder import Decoder
from cyberkv.runtime.sequence import Sequence

TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(600)]
FAMILIES = ("llama", "mistral", "qwen3", "smollm3")


def rows_after(engine: Engine, cuts: Tokens[int], total: int = 544) -> Tensor:
    """Raw rows of the first `total` tokens, computed in canonical steps that end at `cuts`."""
    sequence = engine.new_sequence()
    sequence.extend_table(total)
    start = 0
    for end in [*cuts, total]:
        canonical_step(engine.decoder, sequence, TOKENS[start:end], start)
        start = end
    rows = engine.pool.rows[torch.tensor(sequence.table)].clone()
    sequence.release()
    return rows


def naive_attention(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, scale: float) -> Tensor:
    """One library call over all keys: correct, and not canonical."""
    end = start + q.shape[0]
    rows, columns = torch.arange(start, end)[:, None], torch.arange(end)[None, :]
    mask = columns <= rows
    if window is not None:
        mask &= columns > rows - window
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None, :, :end],
        values[None, :, :end],
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).reshape(q.shape[0], -1)


def naive_step(decoder: Decoder, sequence: Sequence, tokens: Tokens[int], start: int) -> Tensor:
    """A forward without padding."""
    sequence.reserve(start + len(tokens))
    with torch.no_grad():
        return decoder.forward(torch.tensor(tokens), start, len(tokens), sequence)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_do_not_depend_on_chunks_or_threads(family: str, tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine(family)
    expected = rows_after(engine, [])
    for size in (16, 32, 64, 256):
        assert torch.equal(rows_after(engine, range(size, 544, size)), expected), size
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(rows_after(engine, [16, 48, 304]), expected), count
    finally:
        torch.set_num_threads(threads)


def test_rows_do_not_depend_on_where_the_prompt_is_cut(shared_engine: Engine) -> None:
    expected = rows_after(shared_engine, [])

    @given(cuts=st.sets(st.integers(1, 33), max_size=8))
    def check(cuts: set[int]) -> None:
        assert torch.equal(rows_after(shared_engine, [16 * cut for cut in sorted(cuts)]), expected)

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_alone_are_canonical_and_a_naive_schedule_gives_others(
    family: str, tiny_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(family)
    expected = rows_after(engine, [], total=272)

    def one_by_one() -> Tensor:
        live = Live(engine)
        live.sequence.extend_table(272)
        single_step(engine.decoder, live.sequence, TOKENS[:16], 0)
        canonical_step(engine.decoder, live.sequence, TOKENS[16:240], 16)
        single_step(engine.decoder, live.sequence, TOKENS[240:272], 240)  # to and beyond the end of a panel
        rows = engine.pool.rows[torch.tensor(live.sequence.table)].clone()
        live.close()
        return rows

    assert torch.equal(one_by_one(), expected) == (engine.domain.floor_rows == 1)
    monkeypatch.setattr(rotated_module, "panel_attention", naive_attention)
    naive = one_by_one()
    assert not torch.equal(naive, expected)
    torch.testing.assert_close(naive, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", [0, 16, 240, 256, 272])
def test_panels_agree_with_one_call(family: str, start: int, tiny_engine: Callable[..., Engine]) -> None:
    config = tiny_engine(family).config
    generator = torch.Generator().manual_seed(start)
    keys, values = torch.randn(2, config.num_kv_heads, 2 * PANEL_KEYS + 64, config.head_dim, generator=generator)
    q = torch.randn(64, config.num_heads, config.head_dim, generator=generator)
    for window in (None, 1, 8, 200, 300):
        expected = naive_attention(q, keys, values, start, window, config.scale)
        got = panel_attention(q, keys, values, start, window, config.scale)
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)


def test_probe_names_the_domain_by_its_answer(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine("llama")
    again = probe(engine.decoder, engine.processor, engine.geometry)
    assert again == engine.domain
    assert again.broken is None
    other = tiny_engine("qwen3", home="other")
    assert other.domain.name != engine.domain.name


def test_a_domain_has_one_name_whatever_the_block_size(tiny_engine: Callable[..., Engine]) -> None:
    small, large = (tiny_engine("llama", home=str(size), block_size=size) for size in (16, 64))
    domains = [probe(each.decoder, each.processor, each.geometry) for each in (small, large)]
    assert domains[0] == domains[1]


def test_probe_refuses_a_setting_where_the_rule_is_broken(
    tiny_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine("llama")
    monkeypatch.setattr(rotated_module, "panel_attention", naive_attention)
    broken = probe(engine.decoder, engine.processor, engine.geometry, step=naive_step)
    assert broken.broken is not None
    with pytest.raises(UnsafeNumerics, match="nothing may be sealed"):
        broken.require_sound()


def test_nothing_is_sealed_where_the_rule_is_broken(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine("llama")
    engine.domain = replace(engine.domain, broken="steps of 16 gave other bytes than one chunk")
    live = Live(engine)
    before = set(engine.store.cids())
    with pytest.raises(UnsafeNumerics, match="steps of 16"):
        live.append(TOKENS[:40])
    with pytest.raises(UnsafeNumerics):
        live.decode(1)
    assert set(engine.store.cids()) == before
    assert live.tokens == []
