"""The gradients of q, k and v."""

import re

import torch
from torch import Tensor

from verification import budget
from verification.judge import Subject
from verification.problems import LAYOUTS, Problem
from verification.property import for_all
from verification.space import problems

_PINNED = (
    Problem(queries=2, keys=2, dim=2, causal=True),
    Problem(queries=65, keys=129, dim=8, causal=True),
    Problem(batch=2, heads=6, kv_heads=2, queries=3, keys=5, dim=8),
    Problem(queries=2, keys=3, mask="fully masked row"),
    Problem(queries=3, keys=2, dim=2, value_dim=3, grad_layout="expanded", batch=2),
    Problem(queries=70, keys=3, dim=2, dtype="float16"),
    Problem(queries=2, keys=1100, dim=2),
    Problem(queries=300, keys=2, dim=2),
    Problem(queries=2, keys=3, mask="random"),
    Problem(queries=2, keys=2, dim=24, scale=0.25),
    Problem(keys=2),
    Problem(queries=2, keys=3, dim=2, scores="very negative"),
    Problem(queries=3, keys=5, dim=2, dtype="float16", scores="very positive"),
)


def _judged(subject: Subject, problem: Problem) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The subject's dQ, dK, dV in float64, the right ones, and the budgets."""
    q, k, v, mask = problem.tensors()
    grad_out = problem.grad_out()
    answers = [grad.double() for grad in subject.gradients(problem, q, k, v, mask, grad_out)]
    right, allowed = subject.exact_gradients(problem, q, k, v, mask, grad_out)
    return answers, list(right), list(allowed)


# What is drawn has few heads where it is long, and the sizes of one that the others need not see.
_LARGER = (
    Problem(queries=3, keys=5, dim=192, value_dim=128),
    Problem(queries=3, keys=5, dim=256, dtype="float16"),
    Problem(heads=2, queries=130, keys=150, dim=64, dtype="float16", causal=True),
    Problem(batch=4, heads=8, kv_heads=2, queries=3, keys=5, dim=4, mask="random"),
    Problem(heads=2, queries=5, keys=40, dim=27, value_dim=35, dtype="float16", causal=True),
    Problem(heads=4, kv_heads=2, queries=3, keys=300, dim=4, dtype="float16"),
    Problem(heads=2, queries=300, keys=3, dim=2, value_dim=3, dtype="float16", causal=True),
    Problem(queries=5, keys=7, dim=4, dtype="float64", causal=True),
    # Where features meet: see `verification/mutants/reach.py`.
    Problem(heads=2, kv_heads=2, keys=2, dim=256, layout="heads inside"),
    Problem(keys=64, mask="padding", scores="very negative"),
    Problem(keys=128, dim=64, dtype="bfloat16", scores="very negative"),
    Problem(queries=3, keys=5, dim=4, dtype="float16", scores="over 65504"),
)


@for_all(
    problems(grad_layout=list(LAYOUTS), wanted=["QKV", "Q", "K", "V", "QK", "QV", "KV"]), *_PINNED, *_LARGER, strength=3
)
def test_the_gradients_agree_with_the_formula(subject: Subject, problem: Problem) -> None:
    """|dQ - dQ*| <= b(dQ), and the same for dK and dV, elementwise; * is the float64 formula, differentiated."""
    q, k, v, mask = problem.tensors()
    subject.assert_gradients_right(problem, q, k, v, mask, problem.grad_out())


@for_all(problems(grad_layout=list(LAYOUTS)), *_PINNED)
def test_the_gradient_of_the_values_is_dealt_out_whole(subject: Subject, problem: Problem) -> None:
    """sum_j dV_j = sum_i dO_i over the queries that see a key: the rows of P sum to one."""
    (_, _, grad_v), _, (_, _, allowed) = _judged(subject, problem)
    q, k, v, mask = problem.tensors()
    row_sums = subject.exact(problem, q, k, v, mask).weights.sum(dim=-1, keepdim=True)
    given = (problem.grad_out().double() * row_sums).sum(dim=2, keepdim=True)
    given = given.unflatten(1, (problem.kv_heads, -1)).sum(dim=2)
    subject.compare(problem, "sum of dV", grad_v.sum(dim=2, keepdim=True), given, allowed.sum(dim=2, keepdim=True))


@for_all(problems(grad_layout=list(LAYOUTS)), *_PINNED)
def test_a_shift_of_all_keys_has_no_gradient(subject: Subject, problem: Problem) -> None:
    """sum_j dK_j = 0: adding one vector to every key changes no weight."""
    (_, grad_k, _), _, (_, allowed, _) = _judged(subject, problem)
    total = grad_k.sum(dim=2, keepdim=True)
    subject.compare(problem, "sum of dK", total, torch.zeros_like(total), allowed.sum(dim=2, keepdim=True))


@for_all(problems(grad_layout=list(LAYOUTS)), *_PINNED)
def test_a_change_of_basis_has_no_gradient(subject: Subject, problem: Problem) -> None:
    """Q^T dQ = (K^T dK)^T for each kv head: q -> q M with k -> k M^-T changes no score."""
    (grad_q, grad_k, _), _, (allowed_q, allowed_k, _) = _judged(subject, problem)
    q, k, _, _ = problem.tensors()

    def of_query_heads(a: Tensor, b: Tensor) -> Tensor:
        return (a.mT @ b).unflatten(1, (problem.kv_heads, -1)).sum(dim=2)

    of_q = of_query_heads(q.double(), grad_q)
    of_k = (k.double().mT @ grad_k).mT
    allowed = of_query_heads(q.double().abs(), allowed_q) + (k.double().abs().mT @ allowed_k).mT
    subject.compare(problem, "Q^T dQ", of_q, of_k, allowed)


@for_all(
    problems(scores=["normal", "ties"]),
    Problem(queries=2, keys=3, dim=2, dtype="float16"),
    Problem(queries=3, keys=40, dim=8, causal=True),
    calls=2,
)
def test_the_gradients_scale_with_the_incoming_one(subject: Subject, problem: Problem) -> None:
    """c dO gives c dQ, c dK and c dV, for c that a loss scaler, or a mean over a large batch, may bring."""
    q, k, v, mask = problem.tensors()
    # float16 has room for neither: dK and dV are sums, and must stay below 65504.
    power = 6 if problem.dtype == "float16" else 40
    for factor in (2.0**power, 2.0**-power):
        grad_out = problem.grad_out() * factor
        subject.assert_gradients_right(problem, q, k, v, mask, grad_out, f" for {factor:g} dO")


# How torch says that a derivative cannot be differentiated; any other RuntimeError is a fault.
_HAS_NO_SECOND = re.compile(
    r"does not require grad|once_differentiable|derivative for .* is not implemented"
    r"|no autograd formula was registered|does not currently support double backward"
)


@for_all(
    problems(
        **{size: range(1, 7) for size in ("queries", "keys", "dim")},
        value_dim=0,
        dtype="float32",
        scores=["normal", "ties"],
        layout="contiguous",
        grad_layout=["contiguous", "expanded"],
    ),
    Problem(queries=2, keys=3, dim=2),
    Problem(heads=2, queries=3, keys=3, dim=4, causal=True),
    calls=6,
)
def test_a_second_derivative_is_right_or_raises(subject: Subject, problem: Problem) -> None:
    """The gradient of <W, (dQ, dK, dV)> for random W is the formula's, or asking for it raises: no term is lost.

    As for out.sum(), the gradient that comes in requires none itself, which is where terms are lost.
    """
    q, k, v, mask = problem.tensors()
    random = torch.Generator().manual_seed(problem.seed)
    weights = [torch.randn(tensor.shape, generator=random).to(subject.device) for tensor in (q, k, v)]
    inputs = [q, k, v, problem.grad_out(), *weights]

    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    out = subject.attend(leaves[0], leaves[1], leaves[2], **problem.options(mask))
    first = subject.gradients_of(out, leaves, inputs[3], create_graph=True)
    try:
        answers = torch.autograd.grad(first, leaves, weights, materialize_grads=True)
    except RuntimeError as refusal:
        if not isinstance(refusal, NotImplementedError) and not _HAS_NO_SECOND.search(str(refusal)):
            raise
        subject.evidence.stated = f"second derivative: raises {type(refusal).__name__}"
        return
    subject.evidence.stated = "second derivative: right"

    exact = subject.exact(problem, q, k, v, mask)

    def second(given: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in given[:3]]
        output = _step_by_step(leaves[0], leaves[1], leaves[2], exact.visible, problem.scale)
        first = torch.autograd.grad(output, leaves, given[3], create_graph=True)
        return list(torch.autograd.grad(first, leaves, given[4:], materialize_grads=True))

    doubles = [tensor.double() for tensor in inputs]
    terms = problem.queries * problem.heads // problem.kv_heads + problem.keys + problem.dim
    for letter, answer, right, allowed in zip(
        "QKV", answers, *budget.by_trial(second, doubles, q.dtype, terms), strict=True
    ):
        subject.compare(problem, f"second derivative with respect to {letter}", answer, right, allowed)


def _step_by_step(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float | None) -> Tensor:
    """The formula with the sum divided out at the end, as fused kernels have it.

    A softmax that is one step loses nothing between its parts, and a budget found by moving steps would not allow it.
    """
    group = q.shape[1] // k.shape[1]
    key, value = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ key.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    largest = torch.where(visible, scores, float("-inf")).amax(dim=-1, keepdim=True).detach()
    shifted = torch.where(visible, scores - largest.nan_to_num(neginf=0.0), float("-inf"))
    weights = shifted.exp()
    total = weights.sum(dim=-1, keepdim=True)
    return (weights @ value) / torch.where(total == 0, 1.0, total)
