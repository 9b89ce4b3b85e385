"""The judge."""

import os

# torch's profiler, which measures memory on a CPU, writes a line for each of its starts otherwise. Read when torch is.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch

if not torch.cuda.is_available():
    # Without a GPU Triton's kernels run in its interpreter, which has to be known before anything imports triton, and
    # parts of torch do: torch.autograd under a dispatch mode is one.
    os.environ.setdefault("TRITON_INTERPRET", "1")
