"""Triton's interpreter, made to compute products of matrices and bfloat16 as a device does.

It holds bfloat16 as 16-bit integers. Products of matrices multiply those, and rounding cuts off what does not fit. They
go to numpy's library, which treats a row in one way or another by where in a matrix it stands; a device does not.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

PLAIN_CAST = InterpreterBuilder.cast_impl


def widened(handle: TensorHandle) -> TensorHandle:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *rest: Any) -> TensorHandle:
    """Sum in ascending order, all rows alike. A product of two halves is a float32 without rounding, as it is on tensor
    cores."""
    left, right = (widened(each).data.astype(np.float32) for each in (a, b))
    total = d.data.copy()
    for k in range(left.shape[-1]):
        total += left[..., k, None] * right[..., k, None, :]
    return TensorHandle(total, d.dtype.scalar)


def cast_impl(self: InterpreterBuilder, source: TensorHandle, to: Any) -> TensorHandle:
    """Round to the nearest, and of two equally near to the even one."""
    if (source.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
        return PLAIN_CAST(self, source, to)
    rounded = torch.from_numpy(np.array(source.data)).to(torch.bfloat16).view(torch.int16)
    return TensorHandle(rounded.numpy().view(np.uint16), tl.bfloat16)


def mend() -> None:
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast_impl
