"""What became of a property for a backend: one record, made where it is known, which terminal, JSON, JUnit and page
read; and the verdict on a backend that follows from its records.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

# By the most keys; what is longer is "over" the last.
LENGTHS = {16: "1-16", 64: "17-64", 256: "65-256"}

OUTPUT_FORMULA = "test_the_output_agrees_with_the_formula"
GRADIENT_FORMULA = "test_the_gradients_agree_with_the_formula"


def length_of(keys: int) -> str:
    """The entry of LENGTHS for so many keys."""
    return next((name for most, name in LENGTHS.items() if keys <= most), f"over {max(LENGTHS)}")


class LeftOut(BaseException):
    """There was no time, no memory or no device to ask with; its text is the reason.

    No Exception: neither hypothesis nor a kernel's compiler may take it for a failure of its own.
    """


class DeviceLost(BaseException):
    """The GPU answers nothing more in this process, as after an illegal access.

    No Exception: a smaller problem would be looked for, and the smallest taken, since all fail from now on.
    """


@dataclass
class Evidence:
    """What happened to one subject under one property.

    problems  judged, with at least one answer
    calls     answered
    refusals  how many by reason
    worst     the largest error over budget by dtype and by number of keys (as LENGTHS names them)
    covered   by "values", "pairs" and "triples": how many were answered, of how many
    stated    a behaviour that was found, whether a backend states it or not
    machine   findings about the machine that kept problems from being judged, by name
    """

    problems: int = 0
    calls: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    worst: dict[str, dict[str, float]] = field(default_factory=dict)
    covered: dict[str, tuple[int, int]] = field(default_factory=dict)
    stated: str | None = None
    machine: list[str] = field(default_factory=list)

    @property
    def refused(self) -> int:
        """How many calls were refused."""
        return sum(self.refusals.values())


@dataclass(frozen=True)
class Failure:
    """Why a property does not hold.

    reason          one line
    problem         the smallest problem that shows it, as Python writes it; the last one begun where the process died
    call            the problem of the very call that was wrong, where the property makes several
    exception       the type of what was raised
    counterexample  all that is known, with what to paste into a Python shell
    """

    reason: str
    problem: str | None
    exception: str
    counterexample: str
    call: str | None = None


@dataclass(frozen=True)
class Outcome:
    """One property and one backend.

    outcome  "left out": there was no time, memory or device to ask with; "stated": it holds, and the reason is what was
             found out
    threads  of torch, while the property ran
    """

    backend: str
    property: str
    outcome: Literal["pass", "fail", "refused", "stated", "left out"]
    reason: str | None
    evidence: Evidence
    failure: Failure | None
    threads: int
    duration_s: float

    def as_json(self) -> dict[str, Any]:
        """As it stands in a results file: numbers, texts and lists. `from_json` makes the record of it again."""
        evidence = asdict(self.evidence)
        # JSON knows no infinity.
        by_length = {
            dtype: {length: ratio if ratio < math.inf else None for length, ratio in ratios.items()}
            for dtype, ratios in evidence.pop("worst").items()
        }
        worst = {
            dtype: None if None in ratios.values() else max(ratio for ratio in ratios.values() if ratio is not None)
            for dtype, ratios in by_length.items()
        }
        failure = asdict(self.failure) if self.failure else dict.fromkeys(field.name for field in fields(Failure))
        return {
            "backend": self.backend,
            "property": self.property,
            "outcome": self.outcome,
            **{name: value for name, value in failure.items() if name != "reason"},
            "reason": self.reason,
            **evidence,
            "covered": {name: list(counts) for name, counts in evidence["covered"].items()},
            "worst": worst,
            "worst_by_length": by_length,
            "threads": self.threads,
            "duration_s": round(self.duration_s, 3),
        }


def from_json(kept: dict[str, Any]) -> Outcome:
    """The record that `as_json` has made this of."""
    worst = {
        dtype: {length: math.inf if ratio is None else ratio for length, ratio in ratios.items()}
        for dtype, ratios in kept["worst_by_length"].items()
    }
    covered = {name: (done, of) for name, (done, of) in kept["covered"].items()}
    evidence = Evidence(
        kept["problems"], kept["calls"], kept["refusals"], worst, covered, kept["stated"], kept["machine"]
    )
    failure = None
    if kept["outcome"] == "fail":
        failure = Failure(**{field.name: kept[field.name] for field in fields(Failure)})
    return Outcome(
        kept["backend"],
        kept["property"],
        kept["outcome"],
        kept["reason"],
        evidence,
        failure,
        kept["threads"],
        kept["duration_s"],
    )


def verdict(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """The verdict on a backend from all its outcomes, and the reason.

    "verified" means that it was asked: the formula was answered for outputs and gradients, and most values of the
    features of a call are taken.
    """
    by_property = {outcome.property: outcome for outcome in outcomes}
    of_kind = {kind: [o for o in outcomes if o.outcome == kind] for kind in ("fail", "left out", "refused")}
    problems = sum(outcome.evidence.problems for outcome in outcomes)
    answered = f"{problems:,} problems answered"
    if of_kind["fail"]:
        return "failing", f"{len(of_kind['fail'])} of {len(outcomes)} properties fail"
    if of_kind["left out"]:
        return "unfinished", f"{len(of_kind['left out'])} of {len(outcomes)} properties were left out"
    formula, gradients = by_property.get(OUTPUT_FORMULA), by_property.get(GRADIENT_FORMULA)
    if formula is None or formula.outcome != "pass":
        why = "refused" if formula else "not asked"
        return "not verified", f"the formula for outputs was {why}; {answered}"
    taken, values = formula.evidence.covered.get("values", (0, 0))
    if not values:
        return "mostly refused", f"nothing but pinned problems was covered; {answered}"
    if 3 * taken < 2 * values:
        return "mostly refused", f"{taken} of {values} values of the features of a call are taken; {answered}"
    covered = ", ".join(
        f"{done:,} of {of:,} {name}" for name, (done, of) in formula.evidence.covered.items() if name != "values"
    )
    answered = f"{answered}, {covered}"
    if gradients is None:
        return "not verified", f"the formula for gradients was not asked; {answered}"
    if gradients.outcome != "pass":
        return "verified, forward only", answered
    return "verified", answered
