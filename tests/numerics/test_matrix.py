"""A packed matrix gives a row the same bytes in any company; a dense one is what F.linear gives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cyberkv.runtime.models import linear
from cyberkv.runtime.models.linear import Matrix

SHAPES = ((64, 96), (33, 47), (576, 960))


def drawn(inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(inputs)
    return (
        torch.randn(outputs, inputs, generator=generator),
        torch.randn(outputs, generator=generator),
        torch.randn(70, inputs, generator=generator),
    )


@pytest.mark.skipif(not linear._PACKS, reason="this torch has no packed products")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_a_packed_matrix_do_not_depend_on_their_company(shape: tuple[int, int], threads: int) -> None:
    weight, bias, rows = drawn(*shape)
    matrix = Matrix(weight)
    expected = matrix(rows, bias)
    torch.set_num_threads(threads)
    for count in (1, 2, 3, 7, 15, 16, 17, 33):
        assert torch.equal(matrix(rows[:count], bias), expected[:count]), count
        assert torch.equal(matrix(rows[9 : 9 + count], bias), expected[9 : 9 + count]), count
    torch.testing.assert_close(expected, F.linear(rows, weight, bias), rtol=0, atol=1e-3)
    other = Matrix(weight + 1e-3)
    assert not torch.equal(other(rows, bias), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_element_types_stay_dense(dtype: torch.dtype) -> None:
    weight, bias, rows = (each.to(dtype) for each in drawn(64, 96))
    assert torch.equal(Matrix(weight)(rows, bias), F.linear(rows, weight, bias))


def test_without_packed_products_float32_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_PACKS", False)
    weight, bias, rows = drawn(64, 96)
    assert torch.equal(Matrix(weight)(rows, bias), F.linear(rows, weight, bias))
