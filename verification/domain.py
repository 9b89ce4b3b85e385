"""What a subject takes where all else is plain: found by asking, once, and remembered."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from verification.features import FEATURES, FIELDS, Alternative
from verification.problems import DTYPES, Problem

# Plain calls that a kernel is tried with, until it takes one: some take one dtype, whole blocks, causality only.
_PLAIN = [
    Problem(queries=length, keys=length, dim=dim, dtype=dtype, causal=causal, heads=heads, kv_heads=heads)
    for length, heads, causal, dim, dtype in itertools.product((16, 64, 128), (1, 2), (False, True), (64, 128), DTYPES)
]
# What lengths and widths are rounded up to for a kernel that takes whole reads only.
_WHOLE = (8, 16, 32, 64, 128)


class Domain:
    """Asks a subject whether it answers problems.

    answers  whether it answers a problem, rightly or not
    """

    def __init__(self, answers: Callable[[Problem], bool]) -> None:
        self._answers = answers
        self._known: dict[Problem, bool] = {}
        self.plain = next(filter(self.answers, _PLAIN), None)

    def answers(self, problem: Problem) -> bool:
        """Whether the subject answers the problem."""
        if problem not in self._known:
            self._known[problem] = self._answers(problem)
        return self._known[problem]

    def takes(self, alternative: Alternative) -> bool:
        """Whether the subject takes these fields in the plain problem that it takes."""
        return self.plain is not None and self.answers(_with(self.plain, alternative))

    def forms(self, problem: Problem) -> Iterator[Problem]:
        """What the subject takes of a problem that it refuses: as near as can be, in each dtype that it takes."""
        if self.plain is None:
            return
        same = self.takes({"dtype": problem.dtype})
        for dtype in (problem.dtype,) if same else (name for name in DTYPES if self.takes({"dtype": name})):
            changed = replace(problem, dtype=dtype)
            for feature, fields in FIELDS.items():
                given = {field: getattr(changed, field) for field in fields}
                if not self.takes(given):
                    changed = replace(changed, **self._nearest(feature, given))
            if self.answers(changed):
                yield changed

    def _nearest(self, feature: str, given: Alternative) -> Alternative:
        """Of what it takes the nearest to the given, no smaller where there is such a one."""
        known = itertools.chain(_rounded(given), *FEATURES[feature].values())
        plain = {field: getattr(self.plain, field) for field in FIELDS[feature]}
        # Asked from the nearest on: what is far may be large, and take seconds.
        return next(filter(self.takes, sorted(known, key=lambda one: _distance(one, given))), plain)


def _with(problem: Problem, alternative: Alternative) -> Problem:
    changed = replace(problem, **alternative)
    if "mask_shared" in alternative and alternative["mask_shared"] and changed.mask is None:
        return replace(changed, mask="random")
    return changed


def _rounded(given: Alternative) -> Iterator[Alternative]:
    sizes = {name: size for name, size in given.items() if isinstance(size, int) and not isinstance(size, bool)}
    if not sizes or "batch" in sizes or "heads" in sizes:
        return
    for whole in _WHOLE:
        up = {name: -(-size // whole) * whole for name, size in sizes.items()}
        yield up
        if "queries" in up:
            yield dict.fromkeys(up, max(up.values()))


def _distance(one: Alternative, given: Alternative) -> float:
    """How far apart two sets of sizes are, in doublings; smaller counts four times, and what is no size one."""
    total = 0.0
    for name, value in given.items():
        other: Any = one[name]
        if isinstance(value, int) and isinstance(other, int) and not isinstance(value, bool):
            steps = math.log2((other or 1) / (value or 1))
            total += steps if steps >= 0 else -4 * steps
        else:
            total += value != other
    return total
