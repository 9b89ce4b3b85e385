"""How wrong a right answer may be: an error bound for every element, derived from the inputs and the dtype.

Notation: u is the unit roundoff of the input dtype and u32 that of the accumulators (float32, or float64 for float64
inputs); |.| is elementwise. P are the exact weights, S the exact scaled scores, G the gradient of the output O.

Forward. A score is off by at most

    delta_ij = u_s |S_ij| + g(dim) u32 scale (|Q| |K|^T)_ij  (+ u scale w_ij where scores live in the input dtype)

where u_s counts the roundings of the score itself: in the dtype that the scores live in, once when the product is
stored and once when it is scaled, and in float32 once each for the constant of exp2, the scaling, the subtraction of
the maximum and exp. Where scores live in the input dtype, the query may be scaled, and so rounded, before the product:
each of the dim terms of a score is then off by u, and their sum by w = min(|Q| |K|^T, LAMBDA sqrt((Q^2 K^2^T) / 3)).
A softmax whose scores are off by delta is off by a factor within exp(+-2 delta), with delta the
largest of the row, and no weight is more than one, however large delta is:

    e_ij = P_ij expm1(2 delta_i), or where that is much  max(min(P_ij exp(2 delta_i), 1) - P_ij, P_ij)

The weight, P + e at most, is then rounded to the input dtype, before or after it is divided by the sum (2 u), and the
products are summed (g(keys) u32):

    b(P)     = e + (2 u + g(keys) u32) (P + e)
    budget_O = b(P) |V| + u |O|

Backward, with dP = G V^T, D_i = sum_d G_id O_id and dS = P * (dP - D), each product carries on the errors of the last:

    b(D)  = |G| budget_O + g(dim) u32 |G| |O|
    b(dP) = g(dim) u32 |G| |V|^T  (+ u |dP| where scores live in the input dtype)
    b(dS) = b(P) |dP - D| + (P + b(P)) (b(dP) + b(D)) + u |dS|
    b(dQ) = scale (b(dS) |K| + g(keys) u32 |dS| |K|) + u |dQ|
    b(dK) = scale (b(dS)^T |Q| + g(queries) u32 |dS|^T |Q|) + u |dK|
    b(dV) = b(P)^T |G| + g(queries) u32 P^T |G| + u |dV|

where the last terms are of the numbers that the kernel has, which are off by b themselves.

Where a key head serves several query heads, their dK and dV may be rounded before they are added: u for each of them.
A kernel that keeps these sums in the input dtype (torch's CPU flash kernel does: one rounding for each block of
queries) is charged g(blocks) u on top, for blocks of PARTIAL_SUM rows.

Underflow. Below the smallest normal number relative errors end: a weight or a dS there is coarse or flushed to zero.
Each bound therefore has an absolute term, `underflow(dtype)` times the column sums of what the weight multiplies.

g(n) is the growth of the rounding error of a sum of n terms. The worst case, n, is hundreds of times too wide;
rounding errors behave as independent, and a sum of n of them stays within LAMBDA standard deviations, LAMBDA sqrt(n/3).
They do not where a sum has the same few terms over and over: there it is (n + 1) / 2, where that is more.

Source: Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5);
Higham 2002, "Accuracy and Stability of Numerical Algorithms", chapters 3 and 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from implementations import Facts
from verification.oracle import Exact

# One rounding error is uniform in [-u, u]: variance u^2 / 3. Five standard deviations are one chance in two million.
LAMBDA = 5.0

# Rows of the smallest block of queries after which a kernel stores a partial sum: that of torch's CPU flash kernel.
PARTIAL_SUM = 32

# Of the terms of a sum so many are looked at, to see whether they are the same few numbers.
SAMPLED = 64

# `by_trial` computes this often: so it is unlikely that every trial misses an error that can happen.
TRIALS = 16


def growth(terms: int) -> float:
    """Growth of the error of a sum of that many products, in units of the unit roundoff."""
    return LAMBDA * (terms / 3) ** 0.5


def _of_sum(a: Tensor, b: Tensor, u: float, group: int = 1) -> Tensor:
    """Error of the sums in a @ b.mT, relative to |a| @ |b|.mT, in its shape or as one number: g(n) u.

    Where a row of a and a row of b both hold the same few numbers over and over, as for a query of zeros or values of
    one, so do the products, and the same rounding errors come back: there it is the worst case.

    a      (..., rows, n); b (..., columns, n); zeros in them add nothing
    group  so many of these sums are added up as one
    """
    terms = a.shape[-1] * group
    if worst_growth(terms) <= growth(terms):
        return torch.as_tensor(growth(terms) * u)
    repeated = _are_repeated(a, u)[..., :, None] & _are_repeated(b, u)[..., None, :]
    return u * torch.where(repeated, worst_growth(terms), growth(terms)).double()


def worst_growth(terms: int) -> float:
    """Growth of the error of a sum where every rounding has the same sign.

    A partial sum of i terms t is off by up to u i |t|, so that all n partial sums are off by u (n + 1) / 2 of n |t|.
    """
    return (terms + 1) / 2


def _are_repeated(values: Tensor, u: float) -> Tensor:
    """Of which rows the numbers occur twice and more, but for zeros, as far as SAMPLED of them show."""
    sample = values[..., :: max(1, values.shape[-1] // SAMPLED)].sort(dim=-1).values
    steps = sample.diff(dim=-1)
    apart = steps > 2 * u * values.shape[-1] * sample.abs().amax(dim=-1, keepdim=True)
    return 2 * (apart.sum(dim=-1) + 1) <= (sample != 0).sum(dim=-1)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums live in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def underflow(dtype: torch.dtype) -> float:
    """The largest absolute error of a number too small to be normal in that dtype.

    float16 has subnormal numbers everywhere. In bfloat16 and float32 they may be flushed to zero.
    """
    limits = torch.finfo(dtype)
    return limits.smallest_normal * (limits.eps if dtype == torch.float16 else 1.0)


@dataclass(frozen=True)
class ScoreError:
    """Errors that the inputs of an attention call already have: of each score, and of each value."""

    scores: Tensor  # (batch, heads, queries, keys)
    values: Tensor  # (batch, kv_heads, keys, value_dim)


def of_output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    exact: Exact,
    *,
    facts: Facts,
    scale: float | None = None,
    inherited: ScoreError | None = None,
) -> Tensor:
    """The budget of each element of the output, (batch, heads, queries, value_dim), float64.

    facts      where the scores live
    inherited  errors that q, k and v bring along, where they are themselves results
    """
    group = q.shape[1] // k.shape[1]
    values = v.double().abs().repeat_interleave(group, dim=1)
    b_weights = _of_weights(q, k, exact, facts, scale, inherited)
    budget = _of_output(b_weights, values, exact, q.dtype)
    if inherited is not None:
        budget = budget + (exact.weights + b_weights) @ inherited.values.repeat_interleave(group, dim=1)
    return budget


def _of_output(b_weights: Tensor, values: Tensor, exact: Exact, dtype: torch.dtype) -> Tensor:
    flushed = underflow(dtype) * (1 + exact.visible.double() @ values)
    return b_weights @ values + unit_roundoff(dtype) * exact.output.abs() + flushed


def of_row_sum(exact: Exact, dtype: torch.dtype) -> Tensor:
    """The budget of sum_j P_ij, (batch, heads, queries, 1), float64: no error of a score is part of it.

    The exponentials e_j = exp(s_j - m) of scores that are wrong by any amount still divide to weights e_j / sum e that
    sum to one. Left are the roundings of each weight, before and after it is divided (2 u of it), of the output (u),
    and those of the two sums, of exponentials and of weighted ones (g(keys) u32). A kernel that computes exponentials
    twice, or corrects them for a larger maximum, has them off by u32 |s_j - m|, but sum_j P_ij |s_j - m| is at most
    ln(keys), since the entropy of the weights is: g(keys) u32 has room for it.
    """
    u, u32 = unit_roundoff(dtype), unit_roundoff(accumulator(dtype))
    attended = exact.visible.sum(dim=-1, keepdim=True).double()
    keys = exact.visible.shape[-1]
    return (3 * u + max(growth(keys), worst_growth(keys)) * u32) * (attended > 0) + underflow(dtype) * (1 + attended)


def of_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    exact: Exact,
    *,
    facts: Facts,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The budgets of the gradients of q, k and v, in their shapes, float64."""
    u, u32 = unit_roundoff(q.dtype), unit_roundoff(accumulator(q.dtype))
    tiny = underflow(q.dtype)
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    queries, keys = exact.weights.shape[-2:]
    scale = abs(q.shape[-1] ** -0.5 if scale is None else scale)
    query, grad = q.double(), grad_out.double()
    key = k.double().repeat_interleave(group, dim=1)
    value = v.double().repeat_interleave(group, dim=1)
    weights, live = exact.weights, exact.visible.double()

    b_weights = _of_weights(q, k, exact, facts, scale, None)
    grad_weights = grad @ value.mT
    delta = (grad * exact.output).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - delta)
    budget_output = _of_output(b_weights, value.abs(), exact, q.dtype)
    products = grad * exact.output
    of_products = _of_sum(products, torch.ones_like(products[..., :1, :]), u32)
    b_delta = (grad.abs() * budget_output + of_products * products.abs()).sum(-1, keepdim=True)
    b_grad_weights = _of_sum(grad, value, u32) * (grad.abs() @ value.abs().mT)
    if facts.scores is None:
        b_grad_weights = b_grad_weights + u * grad_weights.abs()
    b_grad_scores = b_weights * (grad_weights - delta).abs() + (weights + b_weights) * (b_grad_weights + b_delta)
    b_grad_scores = b_grad_scores + u * (grad_scores.abs() + b_grad_scores)
    # A weight too small to be normal is off by `tiny`, and so is what it is multiplied by; so is dS itself.
    b_grad_scores = b_grad_scores + live * tiny * (1 + (grad_weights - delta).abs())

    at_most = grad_scores.abs() + b_grad_scores
    sum_q = _of_sum(grad_scores, key.mT, u32) + _of_stored_sums(keys, q.dtype, facts)
    sum_k = _of_sum(grad_scores.mT, query.mT, u32, group) + _of_stored_sums(queries * group, q.dtype, facts)
    sum_v = _of_sum(weights.mT, grad.mT, u32, group) + _of_stored_sums(queries * group, q.dtype, facts)
    b_q = scale * (b_grad_scores @ key.abs() + sum_q * (at_most @ key.abs()))
    b_k = scale * (b_grad_scores.mT @ query.abs() + sum_k * (at_most.mT @ query.abs()))
    b_v = (b_weights + tiny * live).mT @ grad.abs() + sum_v * ((weights + b_weights).mT @ grad.abs())
    exact_q = scale * (grad_scores @ key)
    exact_k = scale * (grad_scores.mT @ query)
    exact_v = weights.mT @ grad
    roundings = u if group == 1 else 2 * u
    return (
        b_q + u * (exact_q.abs() + b_q) + tiny,
        _sum_of_group(b_k + roundings * (exact_k.abs() + b_k) + tiny, kv_heads),
        _sum_of_group(b_v + roundings * (exact_v.abs() + b_v) + tiny, kv_heads),
    )


def by_trial(
    function: Callable[[list[Tensor]], list[Tensor]], inputs: list[Tensor], dtype: torch.dtype, terms: int
) -> tuple[list[Tensor], list[Tensor]]:
    """What a function of float64 inputs gives, and its budgets when it is computed in that dtype, where no bound has
    been worked out, as for second derivatives.

    Every result of every step, backward ones included, is moved at random by up to a relative step, as rounding does,
    and how far the results then move is seen; a row of them is as uncertain as its worst element. What one rounding of
    each result does is that times u over the step; sums of so many terms round oftener, and grow it by g(terms).

    Source: Parker 1997, "Monte Carlo arithmetic", UCLA CSD-970002; Vignes 1993, Math. Comput. Simul. 35(3).
    """
    right = function(inputs)
    moved = [torch.zeros_like(result) for result in right]
    for seed in range(TRIALS):
        with _Rounding(seed) as rounding:
            tried = function(inputs)
        moved = [torch.maximum(m, (a - b).abs() / rounding.step) for m, a, b in zip(moved, tried, right, strict=True)]
    factor = growth(terms) * unit_roundoff(dtype)
    return right, [factor * m.amax(dim=-1, keepdim=True).expand_as(m) + underflow(dtype) for m in moved]


class _Rounding(TorchDispatchMode):
    """Inside, every new tensor of floating-point numbers is off by a relative error that is uniform in +-step."""

    # So small that results are linear in it, so large that float64 shows what it does.
    step = torch.finfo(torch.float64).eps ** 0.5

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_view = any(returned.alias_info for returned in func._schema.returns)
        if is_view or not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        uniform = 2 * torch.rand(result.shape, generator=self.random, dtype=result.dtype).to(result.device) - 1
        return result * (1 + self.step * uniform)


def ratio(answer: Tensor, right: Tensor, allowed: Tensor) -> Tensor:
    """Error over budget of each element, float64: over 1 is wrong. Infinite where it is NaN; 0 where nothing is allowed
    and nothing is wrong.
    """
    over = ((answer.double() - right).abs() / allowed).nan_to_num(nan=float("inf"))
    return torch.where((allowed == 0) & (answer.double() == right), 0.0, over)


def of_product(a: Tensor, b: Tensor) -> Tensor:
    """The budget of a @ b.mT, rounded once to its dtype: g(n) u32 |a| |b|^T + u |a b^T|, float64."""
    u, u32 = unit_roundoff(a.dtype), unit_roundoff(accumulator(a.dtype))
    a, b = a.double(), b.double()
    return growth(a.shape[-1]) * u32 * (a.abs() @ b.abs().mT) + u * (a @ b.mT).abs()


def _of_weights(
    q: Tensor,
    k: Tensor,
    exact: Exact,
    facts: Facts,
    scale: float | None,
    inherited: ScoreError | None,
) -> Tensor:
    """b(P), (batch, heads, queries, keys); finite however far off the scores may be."""
    u, u32 = unit_roundoff(q.dtype), unit_roundoff(accumulator(q.dtype))
    roundings = 4 * u32 + (2 * unit_roundoff(q.dtype) if facts.scores is None else 0.0)
    scale = abs(q.shape[-1] ** -0.5 if scale is None else scale)
    query, key = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    summed = _of_sum(query, key, u32)
    query, key = query.abs(), key.abs()
    terms = query @ key.mT
    delta = roundings * exact.scores.abs() + summed * scale * terms
    if facts.scores is None:
        scaled_query = torch.minimum(terms, LAMBDA * (query.square() @ key.square().mT / 3).sqrt())
        delta = delta + unit_roundoff(q.dtype) * scale * scaled_query
    if inherited is not None:
        delta = delta + inherited.scores
    weights = exact.weights
    if weights.shape[-1] == 0:
        return torch.zeros_like(weights)
    moved = 2 * torch.where(exact.visible, delta, 0.0).amax(dim=-1, keepdim=True)
    off = weights * torch.expm1(moved.clamp(max=1.0))
    if (moved > 1).any():
        # By logarithms, since a weight of zero in float64 may be one after a factor that float64 does not hold.
        scores = torch.where(exact.visible, exact.scores, float("-inf"))
        raised = (scores - scores.logsumexp(dim=-1, keepdim=True) + moved).clamp(max=0.0).exp()
        raised = torch.where(exact.visible, raised, 0.0)
        off = torch.where(moved > 1, torch.maximum(raised - weights, weights), off)
    summed = _of_sum(weights, torch.ones_like(weights[..., :1, :]), u32)
    return off + (2 * u + summed) * (weights + off)


def _of_stored_sums(terms: int, dtype: torch.dtype, facts: Facts) -> float:
    """Error of a gradient's sum of that many products where partial sums are stored, relative to |a| @ |b|.mT."""
    return growth(-(-terms // PARTIAL_SUM)) * unit_roundoff(dtype) if facts.sums is None else 0.0


def _sum_of_group(per_head: Tensor, kv_heads: int) -> Tensor:
    """(batch, heads, keys, dim) -> (batch, kv_heads, keys, dim): a kv head serves a whole group of query heads."""
    return per_head.unflatten(1, (kv_heads, -1)).sum(dim=2)
