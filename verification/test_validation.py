"""Inputs that make no sense together. A kernel need not say how they are wrong, but it may not answer."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from verification.judge import Subject
from verification.problems import DTYPES, Problem
from verification.property import for_all
from verification.space import problems

# What refuses, whoever raises it: the kernel, an assertion of its author, torch, Triton.
_REFUSALS = (AssertionError, ValueError, RuntimeError, TypeError, IndexError)  # NotImplementedError is a RuntimeError

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]

# No axis of one: torch broadcasts those, and then there is an answer.
_SEVERAL = {size: range(2, 10) for size in ("queries", "keys", "dim")}


@for_all(
    problems(**_SEVERAL),
    Problem(queries=2, keys=3, dim=2),
    Problem(heads=4, kv_heads=2, queries=5, keys=40, dim=8, causal=True),
    calls=4,
)
def test_keys_and_values_of_different_lengths_are_refused(subject: Subject, problem: Problem) -> None:
    """Three keys and five values, or five keys and three values, raise: no value is left out, none is read beyond."""
    q, k, v, mask = problem.tensors()
    subject.attend(q, k, v, **problem.options(mask))
    longer = problem.placed(torch.cat([v, v[:, :, :2]], dim=2), problem.layout)
    _assert_refused(subject, problem, (q, k, longer, mask), f"{problem.keys} keys and {problem.keys + 2} values")
    more = replace(problem, keys=problem.keys + 2)
    q, k, _, mask = more.tensors()
    _assert_refused(subject, problem, (q, k, v, mask), f"{more.keys} keys and {problem.keys} values")


def _misfits(problem: Problem, inputs: _Inputs) -> Iterator[tuple[str, _Inputs]]:
    """Sizes that no reading brings together, and what they are."""
    q, k, v, mask = inputs

    def twice(tensor: Tensor, axis: int) -> Tensor:
        return problem.placed(torch.cat([tensor, tensor], dim=axis), problem.layout)

    yield "k with twice the head dim of q", (q, twice(k, 3), v, mask)
    yield "q with twice the head dim of k", (twice(q, 3), k, v, mask)
    if problem.batch > 1:
        yield "k and v with twice the batch of q", (q, twice(k, 0), twice(v, 0), None)
        yield "q with twice the batch of k and v", (twice(q, 0), k, v, None)
        yield "v with twice the batch of k", (q, k, twice(v, 0), mask)
    if problem.kv_heads > 1:
        heads = problem.placed(torch.cat([q, q[:, :1]], dim=1), problem.layout)
        yield f"{heads.shape[1]} heads over {problem.kv_heads} kv heads", (heads, k, v, None)
        yield "v with twice the heads of k", (q, k, twice(v, 1), mask)
    everything = torch.ones(*q.shape[:3], problem.keys, dtype=torch.bool, device=q.device)
    yield "a mask with a key more", (q, k, v, torch.cat([everything, everything[..., :1]], dim=3))
    yield "a mask with a query more", (q, k, v, torch.cat([everything, everything[:, :, :1]], dim=2))
    if problem.keys > 2:
        yield "a mask with a key less", (q, k, v, everything[..., 1:].contiguous())
    if problem.queries > 2:
        yield "a mask with a query less", (q, k, v, everything[:, :, 1:].contiguous())
    if problem.heads > 1:
        yield "a mask with a head more", (q, k, v, torch.cat([everything, everything[:, :1]], dim=1))


@for_all(
    problems(**_SEVERAL),
    Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4),
    Problem(heads=3, kv_heads=3, queries=2, keys=4, dim=4, causal=True),
    calls=9,
)
def test_sizes_that_do_not_fit_together_are_refused(subject: Subject, problem: Problem) -> None:
    """Head dims, batches, head counts or a mask of another size raise: nothing is cut off, or read out of bounds."""
    inputs = problem.tensors()
    q, k, v, mask = inputs
    subject.attend(q, k, v, **problem.options(mask))
    for name, wrong in _misfits(problem, inputs):
        _assert_refused(subject, problem, wrong, name)


@for_all(
    problems(**_SEVERAL, layout="contiguous", scores=["normal", "ties"]),
    Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4),
    Problem(batch=3, queries=3, keys=40, dim=8, mask="random", dtype="float16"),
    calls=9,
)
def test_what_torch_would_broadcast_or_cast_is_right_or_refused(subject: Subject, problem: Problem) -> None:
    """One sample of k and v for several of q, several dtypes, a mask of 0 and 1: what they mean, or an exception.

    The contract wants one batch, one dtype and a bool mask; a function that states nothing may take more.
    """
    q, k, v, mask = problem.tensors()
    subject.attend(q, k, v, **problem.options(mask))
    wide, half = DTYPES["float32"], DTYPES["float16"]
    halves = (q.to(half), k.to(half), v.to(half))
    cases: dict[str, tuple[_Inputs, _Inputs]] = {}
    if problem.batch > 1:
        one = (k[:1].contiguous(), v[:1].contiguous())
        cases["one sample of k and v"] = (
            (q, *one, mask),
            (q, one[0].expand(k.shape), one[1].expand(v.shape), mask),
        )
    for name, dtypes in (
        ("q in another dtype", (wide, half, half)),
        ("k in another dtype", (wide, half, wide)),
        ("v in another dtype", (half, half, wide)),
    ):
        # Numbers that both dtypes hold: the right answer has the budget of the coarser one.
        cases[name] = (
            (halves[0].to(dtypes[0]), halves[1].to(dtypes[1]), halves[2].to(dtypes[2]), mask),
            (*halves, mask),
        )
    if mask is not None:
        cases["a mask of the integers 0 and 1"] = ((q, k, v, mask.long()), (q, k, v, mask))
        cases["a mask of the bytes 0 and 1"] = ((q, k, v, mask.byte()), (q, k, v, mask))
    for name, (given, meant) in cases.items():
        answer = _answer(subject, problem, given)
        if answer is None:
            continue
        exact = subject.exact(problem, *meant)
        allowed = subject.budget(problem, meant[0], meant[1], meant[2], exact)
        assert answer.shape == exact.output.shape, f"{name}: the output has shape {tuple(answer.shape)}"
        subject.compare(problem, f"output for {name}", answer, exact.output, allowed)


def _assert_refused(subject: Subject, problem: Problem, inputs: _Inputs, name: str) -> None:
    __tracebackhide__ = True
    answer = _answer(subject, problem, inputs)
    assert answer is None, f"{name}: it answers, with an output of shape {tuple(answer.shape)}"


def _answer(subject: Subject, problem: Problem, inputs: _Inputs) -> Tensor | None:
    """What the subject answers, None where it refuses; a device that is lost is no refusal."""
    q, k, v, mask = inputs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            out = subject.backend.attend(q, k, v, **problem.options(mask))
            if subject.device.type == "cuda":
                torch.cuda.synchronize(subject.device)
    except _REFUSALS as refusal:
        if isinstance(refusal, torch.AcceleratorError):
            raise
        return None
    return out
