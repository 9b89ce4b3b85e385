"""Attention in float64, dense, as the formula says: what every backend is measured against.

It shares nothing with `implementations`: no blocks, no tricks, its own reading of the mask and of causality.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exact:
    """Float64 results of one attention call, heads of k and v repeated for their group of query heads.

    output   (batch, heads, queries, value_dim)
    weights  (batch, heads, queries, keys), the softmax; a fully masked row is zero, or what its convention says
    scores   (batch, heads, queries, keys), scaled, before masking
    visible  (batch, heads, queries, keys), bool
    """

    output: Tensor
    weights: Tensor
    scores: Tensor
    visible: Tensor

    def detach(self) -> "Exact":
        """The same numbers without their graph."""
        return Exact(self.output.detach(), self.weights.detach(), self.scores.detach(), self.visible)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    corner: str = "bottom-right",
    fully_masked_rows: str = "zero",
) -> Exact:
    """softmax(scale Q K^T) V over the visible keys; shapes as in `implementations._contract`.
    Differentiable: gradients of `output` are the exact gradients.

    corner             "bottom-right" or "top-left": where causality is anchored
    fully_masked_rows  "zero", "nan" or "mean": what a row gives that may attend to nothing
    """
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    visible = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
    if causal:
        offset = k.shape[2] - q.shape[2] if corner == "bottom-right" else 0
        last = torch.arange(q.shape[2], device=q.device) + offset
        visible = visible & (torch.arange(k.shape[2], device=q.device) <= last[:, None])
    # Rows that see nothing are given a finite score, and their weights are cleared afterwards: no NaN, no gradient.
    fully_masked = ~visible.any(dim=-1, keepdim=True)
    weights = torch.softmax(torch.where(visible | fully_masked, scores, float("-inf")), dim=-1)
    weights = torch.where(visible, weights, 0.0)
    if fully_masked_rows != "zero":
        constant = float("nan") if fully_masked_rows == "nan" else 1 / max(1, k.shape[2])
        weights = torch.where(fully_masked, constant, weights)
    return Exact(torch.einsum("bhqk,bhkd->bhqd", weights, v), weights, scores, visible)


def gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    **options: Any,
) -> tuple[tuple[Tensor, ...], Exact]:
    """dQ, dK and dV, float64 in the shapes of q, k and v, for that gradient of the output; and the call, detached.
    The options are those of `attention`.
    """
    doubles = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    exact = attention(doubles[0], doubles[1], doubles[2], **options)
    return torch.autograd.grad(exact.output, doubles, grad_out.double()), exact.detach()
