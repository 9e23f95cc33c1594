"""Tensors that stand for memory of a device, where that is the host's: with those of the host they do not mix.

What a device would refuse is refused: an operation over tensors of both, but for copies, for numbers that are one
alone, and for row numbers of the host; and looks at memory that only the device has.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

INDEXING = {"__getitem__"}
HOST_ONLY = {"numpy", "__array__", "pin_memory"}


def plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, OnDevice) else value


def placed(value: Any) -> Any:
    return value.as_subclass(OnDevice) if isinstance(value, Tensor) else value


class OnDevice(Tensor):
    """A tensor of a device."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in HOST_ONLY:
            raise TypeError(f"{name} of a tensor on a device")
        others = [each for each in tree_leaves((args, kwargs)) if type(each) is Tensor and each.ndim]
        is_index = name in INDEXING and isinstance(args[0], OnDevice)
        if others and name != "copy_" and not is_index:
            raise RuntimeError(f"{name} over tensors of the host and of a device")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        if name == "copy_":
            return args[0]
        return result if name == "cpu" else tree_map(placed, result)
