"""The verification as a matrix of properties against backends."""

import math
import re
from dataclasses import dataclass

from reports import formats
from reports.frames import records
from reports.load import Verification
from reports.tables import Cell
from reports.verdicts import ALL_LENGTHS, worst_errors

WORDS = {"pass": "pass", "fail": "FAIL", "refused": "refused", "stated": "stated", "left out": "left out"}


@dataclass(frozen=True)
class Outcome:
    word: str
    kind: str
    detail: str
    hint: str
    anchor: str | None


@dataclass(frozen=True)
class Property:
    title: str
    formula: str
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Failure:
    anchor: str
    backend: str
    title: str
    formula: str
    reason: str | None
    counterexample: str | None


@dataclass(frozen=True)
class Reason:
    backend: str
    reason: str
    properties: list[str]


@dataclass(frozen=True)
class Matrix:
    anchor: str
    verification: Verification
    chapters: list[tuple[str, list[Property]]]
    failures: list[Failure]
    reasons: list[Reason]  # of what was refused or stated
    lengths: list[str]  # of the worst errors: columns
    worst: list[tuple[str, list[tuple[str, list[Cell]]]]]  # backend, its dtypes, a cell for each length


def matrix(verification: Verification, anchor: str) -> Matrix:
    results = {(result["backend"], result["property"]): result for result in records(verification.results)}
    chapters: dict[str, list[Property]] = {}
    failures = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for property in records(verification.properties):
        outcomes = []
        for backend in verification.backends:
            result = results.get((backend, property["id"]))
            if result is None:
                outcomes.append(Outcome("not run", "absent", "", "", None))
                continue
            failure = f"{anchor}-failure-{len(failures) + 1}" if result["outcome"] == "fail" else None
            outcomes.append(_outcome(result, failure))
            if failure:
                failures.append(
                    Failure(
                        failure,
                        backend,
                        property["title"],
                        property["formula"],
                        result["reason"],
                        result["counterexample"],
                    )
                )
            elif result["reason"]:
                reasons.setdefault((backend, result["reason"]), []).append(property["title"])
        chapters.setdefault(property["chapter"], []).append(Property(property["title"], property["formula"], outcomes))
    worst = worst_errors(verification)
    lengths = sorted({length for errors in worst.values() for length in errors}, key=_by_length)
    by_backend: dict[str, list[tuple[str, list[Cell]]]] = {}
    for (backend, dtype), errors in worst.items():
        by_backend.setdefault(backend, []).append((dtype, [_worst(errors.get(length)) for length in lengths]))
    return Matrix(
        anchor,
        verification,
        list(chapters.items()),
        failures,
        [Reason(backend, reason, titles) for (backend, reason), titles in reasons.items()],
        lengths,
        list(by_backend.items()),
    )


def _by_length(name: str) -> tuple[float, ...]:
    """Sorts 1-16 before 17-64, over 256 behind 65-256, and all lengths together in front."""
    numbers = [float(number) for number in re.findall(r"\d+", name)]
    return () if name == ALL_LENGTHS else (*numbers[-1:], len(numbers) == 1)


def _worst(error: float | None) -> Cell:
    if error is None:
        return Cell("not measured", state="none")
    return Cell(
        formats.digits(error) if math.isfinite(error) else "not finite", state="failed" if error > 1 else "number"
    )


def _outcome(result: dict, failure: str | None) -> Outcome:
    some_refused = result["outcome"] != "refused" and result["refusals"]
    return Outcome(
        WORDS[result["outcome"]],
        result["outcome"],
        f"{result['refusals']} refused" if some_refused else "",
        f"{result['problems']} problems" + (f"; {result['reason']}" if result["reason"] else ""),
        failure,
    )
