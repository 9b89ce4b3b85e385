"""Failures grouped by cause: one wrong corner is one finding with all the properties that it breaks under it.

Two failures have one cause where their smallest problems need the same features, or the one all those of the other:
what fails with a causal mask alone explains what fails with a causal mask and padding. Where several do, the one with
the most of them is the cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from verification.outcome import OUTPUT_FORMULA, Outcome
from verification.problems import Problem

# A size is a feature where the smallest problem needs it to be larger than this: past a block, a long row.
LARGE = 8


@dataclass(frozen=True)
class Cause:
    """Failures of one backend that belong together; the problem and the reason are those of the smallest."""

    backend: str
    problem: str | None
    reason: str
    exception: str
    properties: tuple[str, ...]


def causes(outcomes: Sequence[Outcome]) -> list[Cause]:
    """The causes of all failures, those with the smallest problem first."""
    failed = sorted((outcome for outcome in outcomes if outcome.failure), key=_order)
    groups: list[list[Outcome]] = []
    for outcome in failed:
        explaining = [group for group in groups if _explains(group[0], outcome)]
        if explaining:
            max(explaining, key=lambda group: len(_needs_of(group[0]))).append(outcome)
        else:
            groups.append([outcome])
    return [_cause(group) for group in sorted(groups, key=lambda group: _size(group[0]))]


def _cause(group: Sequence[Outcome]) -> Cause:
    first = group[0]
    assert first.failure is not None
    names = tuple(dict.fromkeys(outcome.property for outcome in group))
    return Cause(first.backend, first.failure.problem, first.failure.reason, first.failure.exception, names)


def _explains(first: Outcome, other: Outcome) -> bool:
    """Whether what the first failure needs is among what the other needs, in the same backend."""
    assert first.failure is not None
    assert other.failure is not None
    if first.backend != other.backend or first.failure.exception != other.failure.exception:
        return False
    if first.failure.problem is None or other.failure.problem is None:
        return first.failure.reason == other.failure.reason
    if _is_of_gradients(first) and not _is_of_gradients(other):
        return False
    # A call that leaves a trace, say, does so in the plainest problem, and its outputs may be right all the same.
    if _is_of_values(other) and not _is_of_values(first) and not _needs_of(first):
        return False
    return _needs_of(first) <= _needs_of(other)


def _order(outcome: Outcome) -> tuple[object, ...]:
    """What explains most comes first."""
    return len(_needs_of(outcome)), not _is_of_values(outcome), _is_of_gradients(outcome), *_size(outcome)


def _is_of_values(outcome: Outcome) -> bool:
    """Whether it is one of numbers that the judge knows to be wrong."""
    assert outcome.failure is not None
    return outcome.failure.reason.startswith("wrong ")


def _is_of_gradients(outcome: Outcome) -> bool:
    assert outcome.failure is not None
    return "gradient" in outcome.failure.reason


def _needs_of(outcome: Outcome) -> frozenset[tuple[str, object]]:
    """The features in which the call that was wrong, in its smallest problem, differs from the simplest."""
    needed: set[tuple[str, object]] = set()
    if outcome.failure is None or outcome.failure.problem is None:
        return frozenset()
    parsed = _parsed(outcome.failure.call or outcome.failure.problem)
    for field in fields(parsed):
        value = getattr(parsed, field.name)
        if field.name in ("seed", "device") or value == field.default:
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            if value > LARGE or field.name in ("heads", "kv_heads", "batch"):
                needed.add((field.name, "larger"))
        else:
            needed.add((field.name, value))
    return frozenset(needed)


def _size(outcome: Outcome) -> tuple[bool, int, int, str]:
    """The formula first, whose problem says most; then by what is needed, and by size."""
    assert outcome.failure is not None
    other = outcome.property != OUTPUT_FORMULA
    if outcome.failure.problem is None:
        return (other, 1 << 30, 0, outcome.property)
    parsed = _parsed(outcome.failure.problem)
    needed = sum(getattr(parsed, field.name) != field.default for field in fields(parsed))
    sizes = parsed.batch * parsed.heads * parsed.queries * parsed.keys * parsed.dim
    return (other, needed, sizes, outcome.property)


def _parsed(problem: str) -> Problem:
    return eval(problem, {"Problem": Problem})  # its repr is Python, and no input of a stranger
