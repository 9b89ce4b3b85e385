"""A problem that fails, made as small as it can be while it fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from implementations import Backend
from verification import oracle
from verification.judge import Subject
from verification.outcome import LeftOut
from verification.problems import Problem

PropertyAt = Callable[[Subject, Problem], None]

# Problems put to the subject before the smallest so far is shown; a slow one takes seconds for each.
MOST, MOST_SLOW = 300, 30

# What goes to its default first: a failure without a mask says more than one with a single head.
_ORDER = ("mask", "mask_shared", "causal", "scores", "layout", "grad_layout", "wanted", "scale", "dtype", "value_dim")
_SIZES = ("queries", "keys", "heads", "kv_heads", "batch", "dim")
# Sizes that only fall together: a mask's corner, a group of heads.
_TOGETHER = (("queries", "keys"), ("heads", "kv_heads"))


def shrunk(at: PropertyAt, subject: Subject, problem: Problem, failure: Exception) -> tuple[Problem, Exception]:
    """The smallest problem, reached from that one step by step, at which the property still fails, and how.

    Only failures of the same type count, and no problem at which the formula itself would fail. Where the time ends,
    the smallest so far.
    """
    judge = Subject(subject.backend, subject.device, subject.layer_type)  # with evidence of its own
    formula = Subject(_formula(subject), subject.device)
    left = MOST_SLOW if subject.slow else MOST
    tried = {problem}
    candidates = _smaller(problem)
    try:
        while left and (candidate := next(candidates, None)):
            if candidate in tried:
                continue
            tried.add(candidate)
            left -= 1
            found = _failure(at, judge, candidate)
            if found is not None and type(found) is type(failure) and _failure(at, formula, candidate) is None:
                problem, failure, candidates = candidate, found, _smaller(candidate)
    except LeftOut:
        failure.add_note("The time was up before a smaller problem was found.")
    return problem, failure


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Each is nearer to the simplest problem: a field at its default, or sizes at 1, at 2, halved, or less by one."""
    defaults = {field.name: field.default for field in fields(problem)}
    for name in _ORDER:
        if getattr(problem, name) != defaults[name]:
            yield replace(problem, **{name: defaults[name]})
    groups = [*_TOGETHER, *((name,) for name in _SIZES)]
    for names in groups:
        sizes = [getattr(problem, name) for name in names]
        for smaller in (1, 2, *(step for size in sizes for step in (size // 2, size - size // 4, size - 1))):
            candidate = replace(problem, **{n: min(size, smaller) for n, size in zip(names, sizes, strict=True)})
            if smaller >= 1 and candidate != problem and candidate.heads % candidate.kv_heads == 0:
                yield candidate
    if problem.value_dim > 1:
        yield replace(problem, value_dim=problem.value_dim // 2)
        yield replace(problem, value_dim=problem.value_dim - 1)
    for seed in (0, 1, 2, 3):
        if seed < problem.seed:
            yield replace(problem, seed=seed)


def _failure(at: PropertyAt, subject: Subject, problem: Problem) -> Exception | None:
    try:
        at(subject, problem)
    except Exception as failure:
        return failure
    return None


def _formula(subject: Subject) -> Backend:
    """The oracle as a backend, with the facts and the conventions of the subject."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return oracle.attention(q, k, v, **options, **subject.conventions).output.to(q.dtype)

    return replace(subject.backend, attend=attend)
