"""Softmax in two passes over blocks of keys, as fused Triton kernels, forward and backward.

A program holds one block of queries on chip and reads the keys twice: first for each row's maximum and its sum of
exponentials, then for the weights, which are final now, times the values. Beside `online_triton` the passes differ and,
on some architectures, the tile that suits it; the launch and the backward kernels are the same. Memory grows with the
sequence; Q K^T is computed twice in the forward pass and twice more in the backward pass, and the keys are read once
more than by `online_triton`.

Source: the article's 2.4; Dao 2023, arXiv 2307.08691, for the backward pass.
"""

import torch
from torch import Tensor

from implementations._contract import Facts
from implementations._triton_attention import attend_fused
from implementations._triton_attention import cannot_run as cannot_run
from implementations.fused_qkv import project as project

FACTS = Facts(scores=torch.float32, sums=torch.float32, masked_nonfinite="leaks", deterministic=True, memory="linear")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention in two passes over the keys, in one kernel; shapes and errors as in `implementations._contract`."""
    return attend_fused("two_pass", q, k, v, mask, causal, scale)
