"""Faults of the machine that a kernel must not be blamed for: what torch's own product does here.

On a CPU with AMX, torch 2.13's product in bfloat16 lets a NaN of one row reach the row before it where the inner
dimension is odd. Whoever multiplies with it, every plain PyTorch kernel, then shows a NaN where none belongs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from verification.problems import DTYPES


@dataclass(frozen=True)
class Finding:
    """Something that this machine's arithmetic does, whatever the kernel; `report` is the public one."""

    title: str
    report: str


LEAKING_PRODUCT = Finding("torch's product lets a NaN of one row reach another", "uxlfoundation/oneDNN#5717")
REPORTS = {LEAKING_PRODUCT.title: LEAKING_PRODUCT.report}

# Rows and inner dimensions at which the product of each dtype is looked at, on either side of a block of 16 and 32.
_ROWS = 17
_INNER = (1, 2, 3, 15, 16, 17, 31, 32, 33, 61, 64, 65)


def leaks(a: Tensor, b: Tensor) -> bool:
    """Whether a NaN in some rows of a, (..., rows, inner), reaches other rows of a @ b."""
    clean = ~a.isnan().any(dim=-1) & ~b.isnan().any(dim=(-2, -1))[..., None]
    return bool((a @ b)[clean].isnan().any())


def attention_leaks(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, row: int) -> bool:
    """Whether one of the two products of plain attention, Q K^T and P V, lets a NaN in that row reach another.

    q, k and v as in `implementations._contract`, weights (batch, heads, queries, keys)
    """
    group = q.shape[1] // k.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
    in_row = torch.arange(q.shape[2], device=q.device)[:, None] == row
    query, weights = (tensor.masked_fill(in_row, float("nan")) for tensor in (q, weights.to(q.dtype)))
    return leaks(query, key.mT) or leaks(weights, value)


def findings(device: torch.device) -> dict[str, str]:
    """The title of each finding on this machine, and in which dtypes and inner dimensions it shows."""
    shown: list[str] = []
    for name, dtype in DTYPES.items():
        inner = [width for width in _INNER if _product_leaks(width, dtype, device)]
        if inner:
            shown.append(f"{name}, inner dimension {', '.join(map(str, inner))}")
    return {LEAKING_PRODUCT.title: "; ".join(shown)} if shown else {}


def _product_leaks(inner: int, dtype: torch.dtype, device: torch.device) -> bool:
    a = torch.ones(_ROWS, inner, dtype=dtype, device=device)
    a[_ROWS // 2, 0] = float("nan")
    return leaks(a, torch.ones(inner, _ROWS, dtype=dtype, device=device))
