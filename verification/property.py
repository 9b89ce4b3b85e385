"""A property is a function of a subject and a problem; `@for_all` looks for a problem that refutes it.

First what is pinned, in every form that the subject takes: what it catches depends on no luck. Then a covering array
over the features of a call: every pair of values, every triple for outputs and gradients. Then what hypothesis draws
between. The first problem that fails is made as small as it can be.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from hypothesis import Phase, given, reject, settings
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption

from verification import journal, profiles
from verification.coverage import NAMES, cover
from verification.judge import Subject
from verification.outcome import DeviceLost
from verification.problems import Problem, on
from verification.shrinking import PropertyAt, shrunk
from verification.space import Space

# After PATIENCE refusals for each problem that hypothesis is to draw, and no answer, a subject is asked no more:
# hypothesis would draw ten times as many, and some refuse only after much work.
PATIENCE = 4


class Property(Protocol):
    """A test for pytest; `at` is the plain function, to be called with one problem."""

    at: PropertyAt
    __name__: str

    def __call__(self, subject: Subject) -> None: ...


class Refuted(Exception):
    """A problem fails; the cause is what it raised."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


def for_all(
    space: Space | None, *pinned: Problem, strength: int = 2, calls: int = 1
) -> Callable[[PropertyAt], Property]:
    """Turns a function into a test of pinned problems and of a space, where there is one.

    strength  how many values of features are combined: 3 for the formulas
    calls     one that makes so many calls for a problem draws that many times fewer problems, and narrower long ones
    """

    def decorate(at: PropertyAt) -> Property:
        @wraps(at)
        def test(subject: Subject) -> None:
            __tracebackhide__ = True
            search = _Search(at, subject)
            try:
                search.pinned(pinned)
                if space is not None:
                    search.covered(space, strength, calls)
                    search.drawn(space, calls)
            except Refuted as refuted:
                failure = refuted.__cause__
                assert isinstance(failure, Exception)
                raise _at_the_smallest(at, subject, refuted.problem, failure) from None
            if not subject.evidence.problems:
                raise UnsatisfiedAssumption("no problem of this property was answered")

        del test.__dict__["__wrapped__"]  # or pytest would ask for a fixture named `problem`
        wrapped: Any = test
        wrapped.at = at
        return wrapped

    return decorate


class _Search:
    def __init__(self, at: PropertyAt, subject: Subject) -> None:
        self.at, self.subject = at, subject

    def pinned(self, pinned: tuple[Problem, ...]) -> None:
        for problem in pinned:
            if not self.answers(on(problem, self.subject.device)):
                for form in self.subject.domain.forms(problem):
                    self.answers(on(form, self.subject.device))

    def covered(self, space: Space, strength: int, calls: int) -> None:
        """Triton's kernels are put to the pairs of the formulas only: a problem takes them a second and more."""
        combined = profiles.strength(strength)
        if self.subject.slow:
            combined = min(combined, strength - 1)  # pairs where others are asked triples, and nothing for pairs
        if combined < 2:
            return
        found = cover(
            space,
            combined,
            lambda problem: self.answers(on(problem, self.subject.device)),
            self.subject.domain.takes,
            interpreted=self.subject.interpreted,
            seed=profiles.seed(),
            calls=calls,
        )
        self.subject.evidence.covered |= {NAMES[one.strength]: (one.answered, one.of) for one in found}

    def drawn(self, space: Space, calls: int) -> None:
        profile = settings()  # now and not at import, when none may have been chosen yet
        fewest = max(2, profile.max_examples // 6) if self.subject.interpreted else 5
        examples = max(fewest, profile.max_examples // (calls * (3 if self.subject.slow else 1)))
        evidence, found = self.subject.evidence, list[Refuted]()

        def look(problem: Problem) -> None:
            if found or (not evidence.problems and evidence.refused >= PATIENCE * examples):
                return
            try:
                answered = self.answers(on(problem, self.subject.device))
            except Refuted as refuted:
                # Kept and not raised: hypothesis would call it again, and cry at a kernel that then refuses.
                found.append(refuted)
            else:
                if not answered:
                    reject()

        look.__name__ = look.__qualname__ = self.at.__name__
        drawing = settings(profile, max_examples=examples, phases=[Phase.generate])
        searched: Any = drawing(given(problem=space.strategy())(look))
        with suppress(Unsatisfiable):  # every problem was refused, which the evidence says
            searched()
        if found:
            raise found[0]

    def answers(self, problem: Problem) -> bool:
        """Whether the subject answers the problem, rightly. Raises Refuted where the property fails."""
        __tracebackhide__ = True
        evidence = self.subject.evidence
        answered, refused = evidence.calls, evidence.refused
        journal.begin(problem)
        try:
            self.subject.refuse_what_it_states(self.at, problem)
            self.at(self.subject, problem)
        except UnsatisfiedAssumption:
            return False  # refused, and counted as such by the subject
        except DeviceLost as lost:
            lost.add_note(f"{problem}\n{reproducer(self.at, self.subject, problem)}")
            raise
        except Exception as failure:
            raise Refuted(problem) from failure
        if evidence.calls == answered and evidence.refused > refused:
            return False  # each part of it was refused
        evidence.problems += 1
        return True


def _at_the_smallest(at: PropertyAt, subject: Subject, problem: Problem, failure: Exception) -> Exception:
    """What is raised at the smallest problem that fails as this one does, with it in its notes."""
    smallest = problem
    if profiles.shrinks():
        smallest, failure = shrunk(at, subject, problem, failure)
    found = "" if smallest == problem else f", from {problem}"
    failure.add_note(f"Smallest problem{found}:\n  {smallest}\n{reproducer(at, subject, smallest)}")
    failure.problem = repr(smallest)  # type: ignore[attr-defined]
    return failure


def reproducer(at: PropertyAt, subject: Subject, problem: Problem) -> str:
    """Python to paste into a shell in the checkout; it fails as the test did."""
    module = Path(at.__code__.co_filename).stem
    return (
        "To reproduce, in a Python shell in the checkout:\n\n"
        "from verification.judge import Subject\n"
        "from verification.problems import Problem\n"
        f"from verification.{module} import {at.__name__}\n"
        f"{at.__name__}.at({subject!r}, {problem!r})\n"
    )
