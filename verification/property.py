"""A property is a function of a subject and a problem; `@for_all` looks for a problem that refutes it.

Hypothesis draws problems and shrinks the first that fails. Only then are the pinned ones tried, and made smaller by
`shrinking`: hypothesis would report a pinned problem as it stands. What they catch depends on no luck.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from hypothesis import Phase, given, note, settings
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption
from hypothesis.strategies import SearchStrategy

from verification import profiles as profiles
from verification.judge import DeviceLost, Subject
from verification.problems import Problem, on
from verification.shrinking import PropertyAt, shrunk

# After PATIENCE refusals for each problem of the profile, and no answer, a subject is asked no more: hypothesis would
# draw ten times as many, and some refuse only after much work.
PATIENCE = 4

# A head dim that every kernel takes.
USUAL_DIM = 64


class Property(Protocol):
    """A test for pytest; `at` is the plain function, to be called with one problem."""

    at: PropertyAt
    __name__: str

    def __call__(self, subject: Subject) -> None: ...


def for_all(
    problems: SearchStrategy[Problem] | None, *pinned: Problem, calls: int = 1
) -> Callable[[PropertyAt], Property]:
    """Turns a check into a test of what is drawn, if anything is, and of the pinned problems.

    One that makes so many calls for a problem looks at that many times fewer problems.
    """

    def decorate(check: PropertyAt) -> Property:
        @wraps(check)
        def test(subject: Subject) -> None:
            __tracebackhide__ = True
            profile = settings()  # now and not at import, when none may have been chosen yet
            share = calls * (3 if subject.interpreted or subject.compiles else 1)
            fewest = max(2, profile.max_examples // 6) if subject.interpreted else 5
            examples = max(fewest, profile.max_examples // share)
            evidence = subject.evidence

            def search(subject: Subject, problem: Problem) -> None:
                __tracebackhide__ = True
                if not evidence.problems and evidence.refused >= PATIENCE * examples:
                    return
                problem = on(problem, subject.device)
                note(reproducer(check, subject, problem))
                try:
                    check(subject, problem)
                except DeviceLost as lost:
                    lost.add_note(f"{problem}\n{reproducer(check, subject, problem)}")
                    raise
                evidence.problems += 1

            search.__name__ = search.__qualname__ = check.__name__  # what hypothesis prints
            if problems is not None:
                searched: Any = settings(profile, max_examples=examples)(given(problem=problems)(search))
                with suppress(Unsatisfiable):  # every problem was refused; a pinned one may still be answered
                    searched(subject=subject)
            for problem in pinned:
                for asked in _until_one_is_taken(on(problem, subject.device)):
                    answered, refused = evidence.calls, evidence.refused
                    try:
                        check(subject, asked)
                    except UnsatisfiedAssumption:
                        continue  # refused, and counted as such by the subject
                    except DeviceLost as lost:
                        lost.add_note(f"{asked}\n{reproducer(check, subject, asked)}")
                        raise
                    except Exception as failure:
                        raise _at_the_smallest(check, subject, asked, failure) from None
                    if evidence.calls > answered or evidence.refused == refused:
                        evidence.problems += 1
                        break
            if not evidence.problems:
                raise UnsatisfiedAssumption("no problem of this property was answered")

        del test.__dict__["__wrapped__"]  # or pytest would ask for a fixture named `problem`
        wrapped: Any = test
        wrapped.at = check
        return wrapped

    return decorate


def _until_one_is_taken(problem: Problem) -> Iterator[Problem]:
    """A pinned problem; for a kernel that refuses it in float32 the same in half precision, then a usual width too.

    What is pinned is small, to be read at a glance, and many a kernel takes half precision and whole reads only.
    """
    yield problem
    if problem.dtype == "float32":
        for width in ({}, {"dim": USUAL_DIM, "value_dim": 0}):
            for dtype in ("float16", "bfloat16"):
                yield replace(problem, dtype=dtype, **width)


def _at_the_smallest(check: PropertyAt, subject: Subject, pinned: Problem, failure: Exception) -> Exception:
    """What the check raises at the smallest problem that fails as the pinned one does, with it in its notes."""
    smallest, told = pinned, "Pinned problem"
    if Phase.shrink in settings().phases:
        smallest, failure = shrunk(check, subject, pinned, failure)
    if smallest != pinned:
        told = f"Smallest problem, from {pinned} that is pinned"
    failure.add_note(f"{told}:\n  {smallest}\n{reproducer(check, subject, smallest)}")
    return failure


def reproducer(check: PropertyAt, subject: Subject, problem: Problem) -> str:
    """Python to paste into a shell in the checkout; it fails as the test did."""
    module = Path(check.__code__.co_filename).stem
    return (
        "To reproduce, in a Python shell in the checkout:\n\n"
        "from verification.judge import Subject\n"
        "from verification.problems import Problem\n"
        f"from verification.{module} import {check.__name__}\n"
        f"{check.__name__}.at({subject!r}, {problem!r})\n"
    )
