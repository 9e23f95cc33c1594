"""Where there is a GPU, the kernels run on it; elsewhere, under Triton's interpreter.

Triton decides that when a kernel is defined, so this stands before the first import of one. Every test is collected
before one runs, and no other test module imports kernels at its top: so it holds for the whole process, and where
the examples of every module are run, too. What compiles starts a process of its own without it.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.gpu.engines import Engines

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    from tests.gpu import interpreted

    interpreted.mend()
else:
    # One that was inherited would have the interpreter tested, over the memory of the GPU.
    os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Engines]":
    """Engines of small models, which only lose by more threads than one."""
    from tests.gpu.engines import Engines

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        yield Engines(tmp_path_factory.mktemp("engines"), stack)
    torch.set_num_threads(threads)
