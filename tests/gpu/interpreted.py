"""Triton's interpreter, made to compute bfloat16 as a device does.

It holds bfloat16 as 16-bit integers. Products of matrices multiply those, and rounding cuts off what does not fit.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

PLAIN = {name: getattr(InterpreterBuilder, name) for name in ("create_dot", "cast_impl")}


def widened(handle: TensorHandle) -> TensorHandle:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
    """A product of two bfloat16 is a float32 without rounding, as it is on tensor cores."""
    return PLAIN["create_dot"](self, widened(a), widened(b), *rest)


def cast_impl(self: InterpreterBuilder, source: TensorHandle, to: Any) -> TensorHandle:
    """Round to the nearest, and of two equally near to the even one."""
    if (source.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
        return PLAIN["cast_impl"](self, source, to)
    rounded = torch.from_numpy(np.array(source.data)).to(torch.bfloat16).view(torch.int16)
    return TensorHandle(rounded.numpy().view(np.uint16), tl.bfloat16)


def mend() -> None:
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast_impl
