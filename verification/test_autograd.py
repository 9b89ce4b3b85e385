"""What else torch's automatic differentiation may ask: forward mode, and what lies between forward and backward."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from verification import budget
from verification.judge import Subject, assert_same_bits, one_may_be_refused
from verification.problems import OWN_NUMBERS, Problem
from verification.property import for_all
from verification.space import problems

# How torch says that there is no rule for tangents; any other RuntimeError is a fault.
_HAS_NO_TANGENT = re.compile(
    r"setup_context|jvp|forward[- ](mode )?(AD|automatic|differentiation)|not (yet )?(been )?implemented", re.IGNORECASE
)

# How torch says that what a backward pass wants has been overwritten since.
_OVERWRITTEN = "modified by an inplace operation"

_Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@for_all(
    problems(
        **{size: range(1, 7) for size in ("queries", "keys", "dim")},
        value_dim=0,
        dtype="float32",
        scores=["normal", "ties"],
        layout="contiguous",
        grad_layout="contiguous",
    ),
    Problem(queries=2, keys=3, dim=2),
    Problem(heads=2, queries=3, keys=3, dim=4, causal=True, mask="fully masked row"),
    calls=3,
)
def test_a_derivative_in_forward_mode_is_right_or_raises(subject: Subject, problem: Problem) -> None:
    """dO = (P * (dS - rowsum(P * dS))) V + P dV with dS = scale (dQ K^T + Q dK^T), or it raises: never a silent zero.

    By torch.func.jvp, and by dual numbers with and without the tangent of each input.
    """
    q, k, v, mask = problem.tensors()
    subject.attend(q, k, v, **problem.options(mask))  # a problem that is refused as such is another matter
    random = torch.Generator().manual_seed(problem.seed)
    tangents = [torch.randn(tensor.shape, generator=random).to(subject.device, tensor.dtype) for tensor in (q, k, v)]
    exact = subject.exact(problem, q, k, v, mask)

    def pushed(given: list[Tensor]) -> list[Tensor]:
        return [_pushed_forward(given[:3], given[3:], exact.visible, problem.scale)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return subject.backend.attend(q, k, v, **problem.options(mask))

    outcomes: dict[str, None] = {}
    judged: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for name, wanted, mode in (
        ("torch.func.jvp", "QKV", _by_jvp),
        ("dual numbers", "QKV", _by_dual_numbers),
        *((f"dual numbers in {letter} alone", letter, _by_dual_numbers) for letter in "QKV"),
    ):
        given = [tangent * (letter in wanted) for letter, tangent in zip("QKV", tangents, strict=True)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # torch, of its own rules for jvp
                answer = mode(attend, [q, k, v], given, wanted)
        except RuntimeError as refusal:
            if not isinstance(refusal, NotImplementedError) and not _HAS_NO_TANGENT.search(str(refusal)):
                raise
            outcomes[f"raises {type(refusal).__name__}"] = None
            continue
        outcomes["right"] = None
        if wanted not in judged:
            doubles = [tensor.double() for tensor in (q, k, v, *given)]
            judged[wanted] = budget.by_trial(pushed, doubles, q.dtype, problem.keys + 2 * problem.dim)
        (right,), (allowed,) = judged[wanted]
        subject.compare(problem, f"tangent of the output by {name}", answer, right, allowed)
    subject.evidence.stated = f"forward mode: {', '.join(outcomes)}"


def _by_jvp(attend: _Function, inputs: list[Tensor], tangents: list[Tensor], wanted: str) -> Tensor:
    assert wanted == "QKV"
    pushed: Any = torch.func.jvp(attend, tuple(inputs), tuple(tangents))
    return pushed[1]


def _by_dual_numbers(attend: _Function, inputs: list[Tensor], tangents: list[Tensor], wanted: str) -> Tensor:
    with forward_ad.dual_level():
        q, k, v = (
            forward_ad.make_dual(primal, tangent) if letter in wanted else primal
            for letter, primal, tangent in zip("QKV", inputs, tangents, strict=True)
        )
        out, tangent = forward_ad.unpack_dual(attend(q, k, v))
        return torch.zeros_like(out) if tangent is None else tangent.clone()  # none stands for zero


def _pushed_forward(inputs: list[Tensor], tangents: list[Tensor], visible: Tensor, scale: float | None) -> Tensor:
    """The formula with the sum divided out at the end, as fused kernels have it, and its quotient rule."""
    q, k, v = inputs
    dq, dk, dv = tangents
    group = q.shape[1] // k.shape[1]
    k, v, dk, dv = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v, dk, dv))
    scale = float(q.shape[-1] ** -0.5 if scale is None else scale)
    scores = torch.where(visible, q @ k.mT * scale, float("-inf"))
    weights = (scores - scores.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)).exp()
    moved = weights * ((dq @ k.mT + q @ dk.mT) * scale)
    total = weights.sum(dim=-1, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    out = (weights @ v) / total
    return (moved @ v + weights @ dv - out * moved.sum(dim=-1, keepdim=True)) / total


@for_all(
    problems(layout=OWN_NUMBERS),
    Problem(queries=2, keys=3, dim=2),
    Problem(heads=2, queries=3, keys=40, dim=8, mask="random", dtype="float16"),
    calls=5,
)
def test_what_the_backward_pass_reads_may_not_change_unnoticed(subject: Subject, problem: Problem) -> None:
    """q, k, v, mask or the output overwritten after the forward pass: its gradients all the same, or torch's error.

    torch notices where the tensor was kept by save_for_backward, and not where it was kept in any other way.
    """
    outcomes: dict[str, None] = {}
    for name in ("q", "k", "v", "mask", "output"):
        q, k, v, mask = problem.tensors()
        right, allowed = subject.exact_gradients(problem, q, k, v, mask, problem.grad_out())
        other = replace(problem, seed=problem.seed + 1).tensors()
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        with one_may_be_refused():
            out = subject.attend(leaves[0], leaves[1], leaves[2], **problem.options(mask))
            kept, numbers = {
                "q": (leaves[0], other[0]),
                "k": (leaves[1], other[1]),
                "v": (leaves[2], other[2]),
                "mask": (mask, other[3]),
                "output": (out, torch.ones_like(out)),
            }[name]
            if kept is None or numbers is None:
                continue
            with torch.no_grad():
                kept.copy_(numbers)
            try:
                answers = subject.gradients_of(out, leaves, problem.grad_out())
            except RuntimeError as noticed:
                if _OVERWRITTEN not in str(noticed):
                    raise
                outcomes["noticed"] = None
                continue
            outcomes["right"] = None
            subject.compare_gradients(problem, answers, right, allowed, f" after {name} was overwritten")


@for_all(
    problems(),
    Problem(queries=2, keys=3, dim=2),
    Problem(batch=2, heads=2, queries=3, keys=40, dim=8, causal=True, dtype="float16"),
    calls=4,
)
def test_gradients_once_returned_are_left_alone(subject: Subject, problem: Problem) -> None:
    """What a backward pass has returned keeps its bits through the next one, of the same call and of another."""
    other = replace(problem, seed=problem.seed + 1)
    returned: list[tuple[Tensor, Tensor]] = []
    for one in (problem, other, problem):
        q, k, v, mask = one.tensors()
        right, allowed = subject.exact_gradients(one, q, k, v, mask, one.grad_out())
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        out = subject.attend(leaves[0], leaves[1], leaves[2], **one.options(mask))
        for _ in range(2):
            answers = subject.gradients_of(out, leaves, one.grad_out(), retain_graph=True)
            subject.compare_gradients(one, answers, right, allowed, "")
            for gradient, copy in returned:
                assert_same_bits(gradient, copy, "a later backward pass wrote into a gradient that was returned")
            returned += [(answer, answer.clone()) for answer in answers]
