"""The judge."""

import os

# Otherwise torch's profiler, which measures memory on a CPU, logs a line at each start. torch reads this when it is
# imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch

if not torch.cuda.is_available():
    # Without a GPU Triton's kernels run in its interpreter, which has to be known before anything imports triton, and
    # parts of torch do: torch.autograd under a dispatch mode is one.
    os.environ.setdefault("TRITON_INTERPRET", "1")
