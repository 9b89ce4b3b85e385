"""A pinned problem that fails, made as small as one that was drawn: hypothesis reports what is pinned as it stands."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from implementations import Backend
from verification import oracle
from verification.judge import Subject
from verification.problems import Problem

PropertyAt = Callable[[Subject, Problem], None]

# Problems put to the subject before the smallest so far is told; in the interpreter each takes seconds.
MOST, MOST_INTERPRETED = 200, 20


def shrunk(check: PropertyAt, subject: Subject, problem: Problem, failure: Exception) -> tuple[Problem, Exception]:
    """The smallest problem, reached from that one field by field, under which the check still fails, and how.

    Only failures of the same type count, and no problem under which the formula itself would fail the check.
    """
    judge = Subject(subject.backend, subject.device, subject.layer_type)  # with evidence of its own
    formula = Subject(_formula(subject.backend), subject.device)
    left = MOST_INTERPRETED if subject.interpreted or subject.compiles else MOST
    candidates = _smaller(problem)
    while left and (candidate := next(candidates, None)):
        left -= 1
        found = _failure(check, judge, candidate)
        if found is not None and type(found) is type(failure) and _failure(check, formula, candidate) is None:
            problem, failure, candidates = candidate, found, _smaller(candidate)
    return problem, failure


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Each has one field nearer to its default: there, halfway, or by one."""
    for field in fields(problem):
        value, simplest = getattr(problem, field.name), field.default
        if value == simplest or field.name == "device":
            continue
        nearer = [simplest]
        if isinstance(value, int) and isinstance(simplest, int) and value > simplest + 1:
            nearer += [(value + simplest) // 2, value - 1]
        for other in dict.fromkeys(nearer):
            candidate = replace(problem, **{field.name: other})
            if candidate.heads % candidate.kv_heads == 0:
                yield candidate


def _failure(check: PropertyAt, subject: Subject, problem: Problem) -> Exception | None:
    try:
        check(subject, problem)
    except Exception as failure:
        return failure
    return None


def _formula(backend: Backend) -> Backend:
    """The oracle, with the facts of the backend."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return oracle.attention(q, k, v, **options).output.to(q.dtype)

    return replace(backend, attend=attend)
