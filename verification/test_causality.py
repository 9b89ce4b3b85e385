"""The future does not reach the past."""

from dataclasses import replace

import torch
from torch import Tensor

from verification.judge import Subject, assert_no_leak, assert_same_bits
from verification.problems import Problem
from verification.property import for_all
from verification.space import problems

_CAUSAL = problems(causal=True, layout=["contiguous", "heads inside", "sliced"])
_PINNED = (
    Problem(queries=2, keys=2, causal=True),
    Problem(queries=5, keys=7, causal=True),
    Problem(queries=64, keys=64, dim=8, causal=True),
    Problem(queries=65, keys=130, dim=8, causal=True),
    Problem(queries=2, keys=3, causal=True, mask="random"),
)


def _first_future_key(problem: Problem) -> int:
    """A key in the middle: queries before it are the past, it and later keys are the future."""
    return (problem.keys + 1) // 2


@for_all(_CAUSAL, *_PINNED)
def test_the_future_does_not_reach_the_past(subject: Subject, problem: Problem) -> None:
    """Changing K_j and V_j for j >= t changes no bit of O_i for i + keys - queries < t."""
    q, k, v, mask = problem.tensors()
    out = subject.attend(q, k, v, **problem.options(mask))
    future = _first_future_key(problem)
    other = replace(problem, seed=problem.seed + 1).tensors()
    past = max(0, min(problem.queries, future - subject.offset(problem)))

    def with_changed(keys: slice) -> Tensor:
        changed: list[Tensor] = []
        for tensor, others in ((k, other[1]), (v, other[2])):
            tensor = tensor.clone()
            tensor[:, :, keys] = others[:, :, keys] * 100
            changed.append(problem.placed(tensor, problem.layout))
        return subject.attend(q, *changed, **problem.options(mask))[:, :, :past]

    message = f"keys from {future} on were changed, and queries before saw it"
    keys = range(future, problem.keys)
    changed = with_changed(slice(future, None))
    assert_no_leak(changed, out[:, :, :past], message, keys, lambda key: with_changed(slice(key, key + 1)))


@for_all(_CAUSAL, *_PINNED)
def test_the_past_has_no_gradient_from_the_future(subject: Subject, problem: Problem) -> None:
    """d O_i / d K_j = d O_i / d V_j = 0 exactly for j > i + keys - queries."""
    q, k, v, mask = problem.tensors()
    future = _first_future_key(problem)
    past = max(0, min(problem.queries, future - subject.offset(problem)))
    grad_out = problem.grad_out().clone()
    grad_out[:, :, past:] = 0
    _, grad_k, grad_v = subject.gradients(problem, q, k, v, mask, grad_out)
    for name, grad in (("K", grad_k[:, :, future:]), ("V", grad_v[:, :, future:])):
        assert_same_bits(grad, torch.zeros_like(grad), f"the gradient of {name} from key {future} on, for past queries")


@for_all(
    problems(causal=True, mask=None),
    *(replace(p, mask=None) for p in _PINNED),
    Problem(queries=3, keys=2, causal=True),
    Problem(heads=2, queries=2, keys=2, causal=True),
)
def test_the_causal_flag_is_the_lower_right_triangle(subject: Subject, problem: Problem) -> None:
    """causal=True is the mask j <= i + keys - queries, or j <= i where `causal_corner` says so: both calls agree with
    the same formula.
    """
    if subject.facts.causal_corner != "bottom-right":
        subject.evidence.stated = f"causality is anchored {subject.facts.causal_corner}"
    q, k, v, _ = problem.tensors()
    triangle = torch.ones(problem.queries, problem.keys, dtype=torch.bool, device=problem.device)
    triangle = triangle.tril(subject.offset(problem))
    problem, without_flag = replace(problem, causal=True), replace(problem, causal=False)
    exact = subject.exact(without_flag, q, k, v, triangle[None, None])
    flagged = subject.attend(q, k, v, causal=True, scale=problem.scale)
    allowed = subject.budget(problem, q, k, v, exact)
    subject.compare(problem, "output under the causal flag", flagged, exact.output, allowed, exact)
    subject.assert_right(without_flag, q, k, v, triangle[None, None], "output under the triangular mask")
