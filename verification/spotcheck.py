"""Is this very result right? A sample of its query rows against the oracle, cheap enough to do before every timing.

A row of the output depends on no other row, so a sample of rows costs rows x keys in float64, not queries x keys. The
same is true backwards: with a gradient that is zero outside the sampled rows, every element of dK and dV comes from
them alone, and dQ is zero elsewhere.
"""

import torch
from torch import Tensor

from implementations import Backend, SelfAttention
from verification import budget, oracle

ROWS = 16


def rows_of(queries: int) -> Tensor:
    """Sampled rows: the first, the last, and others from a fixed seed, sorted."""
    if queries <= ROWS:
        return torch.arange(queries)
    inner = torch.randperm(queries - 2, generator=torch.Generator().manual_seed(queries))[: ROWS - 2] + 1
    return torch.cat([torch.tensor([0, queries - 1]), inner]).sort().values


def forward(backend: Backend, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *, causal: bool) -> float:
    """The worst error over budget among the sampled rows of out = attend(q, k, v, causal=causal)."""
    rows = rows_of(q.shape[2]).to(q.device)
    q_rows, mask = q[:, :, rows].detach(), _mask(q, k, rows, causal)
    k, v = k.detach(), v.detach()
    exact = oracle.attention(q_rows, k, v, mask=mask)
    allowed = budget.of_output(q_rows, k, v, exact, facts=backend.facts)
    return _worst(out[:, :, rows].detach(), exact.output, allowed)


def gradient_rows(out: Tensor) -> Tensor:
    """A gradient for the sampled rows of `out`, standard normal from a fixed seed."""
    random = torch.Generator(out.device).manual_seed(0)
    shape = (*out.shape[:2], len(rows_of(out.shape[2])), out.shape[3])
    return torch.randn(shape, generator=random, device=out.device).to(out.dtype)


def gradient(out: Tensor) -> Tensor:
    """The gradient of `out` that `backward` wants sent back: zero outside the sampled rows."""
    rows = rows_of(out.shape[2]).to(out.device)
    return torch.zeros_like(out).index_copy_(2, rows, gradient_rows(out))


def backward(
    backend: Backend, q: Tensor, k: Tensor, v: Tensor, out: Tensor, answers: tuple[Tensor, ...], *, causal: bool
) -> float:
    """The worst error over budget of answers = (dQ, dK, dV), from out = attend(q, k, v, causal=causal) and
    `gradient(out)`.
    """
    rows = rows_of(q.shape[2]).to(q.device)
    grad_q, grad_k, grad_v = answers
    leaves = q[:, :, rows].detach(), k.detach(), v.detach()
    grad_rows = gradient_rows(out)
    exact_grads, exact = oracle.gradients(*leaves, grad_rows, mask=_mask(q, k, rows, causal))
    allowed = budget.of_gradients(*leaves, grad_rows, exact, facts=backend.facts)
    if grad_q.index_fill(2, rows, 0.0).count_nonzero():
        return float("inf")
    return max(map(_worst, (grad_q[:, :, rows], grad_k, grad_v), exact_grads, allowed))


def layer(layer: SelfAttention, x: Tensor, y: Tensor, *, causal: bool) -> float:
    """The worst error over budget of the links of y = layer(x, causal=causal): projection, attention, W_O.

    Each link is checked on sampled rows from what the link before it really gave.
    """
    rows = rows_of(x.shape[1]).to(x.device)
    x, y, weight = x.detach(), y.detach(), layer.W_QKV.weight.detach()
    with torch.no_grad():
        q, k, v = layer.backend.project(x, weight, layer.heads, layer.kv_heads)
        heads_out = layer.backend.attend(q, k, v, causal=causal)
    projected = torch.cat([t[:, :, rows].transpose(1, 2).flatten(2) for t in (q, k, v)], dim=-1)
    merged = heads_out[:, :, rows].transpose(1, 2).flatten(2)
    return max(
        _product(x[:, rows], weight, projected),
        forward(layer.backend, q, k, v, heads_out, causal=causal),
        _product(merged, layer.W_O.weight.detach(), y[:, rows]),
    )


def _product(a: Tensor, b: Tensor, answer: Tensor) -> float:
    return _worst(answer, a.double() @ b.double().mT, budget.of_product(a, b))


def _mask(q: Tensor, k: Tensor, rows: Tensor, causal: bool) -> Tensor | None:
    if not causal:
        return None
    last = rows[:, None] + k.shape[2] - q.shape[2]
    return torch.arange(k.shape[2], device=q.device) <= last


def _worst(answer: Tensor, exact: Tensor, allowed: Tensor) -> float:
    ratio = budget.ratio(answer, exact, allowed)
    return ratio.max().item() if ratio.numel() else 0.0
