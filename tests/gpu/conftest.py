"""Where there is a GPU, the kernels run on it; elsewhere, under Triton's interpreter.

Triton decides that when a kernel is defined, so this stands before the first import of one. Every test is collected
before one runs, and no other test module imports kernels at its top: so it holds for the whole process, and where
the examples of every module are run, too. What compiles starts a process of its own without it.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    from tests.gpu import interpreted

    interpreted.mend()
else:
    # One that was inherited would have the interpreter tested, over the memory of the GPU.
    os.environ.pop("TRITON_INTERPRET", None)
