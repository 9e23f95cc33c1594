"""Where there is no GPU, the kernels run under Triton's interpreter.

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
