"""The verification as a matrix of properties against backends."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from reports import formats
from reports.frames import records
from reports.load import Cause, Verification
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
    """One cause: what the file says of it, the titles of its properties, and the counterexample of the smallest."""

    anchor: str
    cause: Cause
    titles: list[str]
    counterexample: str | None


@dataclass(frozen=True)
class Reason:
    """What a backend said for some properties, and how many more times with other numbers in it."""

    backend: str
    reason: str
    others: int
    properties: list[str]


@dataclass(frozen=True)
class Matrix:
    anchor: str
    verification: Verification
    chapters: list[tuple[str, list[Property]]]
    failures: list[Failure]  # that of the smallest problem first
    reasons: list[Reason]  # of what was refused throughout, stated or left out
    refusals: list[Reason]  # of single calls
    lengths: list[str]  # of the worst errors: columns
    worst: list[tuple[str, list[tuple[str, list[Cell]]]]]  # backend, its dtypes, a cell for each length


def matrix(verification: Verification, anchor: str) -> Matrix:
    results = {(result["backend"], result["property"]): result for result in records(verification.results)}
    titles = dict(zip(verification.properties["id"], verification.properties["title"], strict=True))
    failures = [
        Failure(
            f"{anchor}-failure-{number}",
            cause,
            [titles[name] for name in cause.properties],
            results[cause.backend, cause.properties[0]]["counterexample"],
        )
        for number, cause in enumerate(verification.causes, start=1)
    ]
    anchors = {(one.cause.backend, name): one.anchor for one in failures for name in one.cause.properties}
    chapters: dict[str, list[Property]] = {}
    for property in records(verification.properties):
        outcomes = []
        for backend in verification.backends:
            result = results.get((backend, property["id"]))
            outcomes.append(
                _outcome(result, anchors.get((backend, property["id"])))
                if result
                else Outcome("not run", "absent", "", "", None)
            )
        chapters.setdefault(property["chapter"], []).append(Property(property["title"], property["formula"], outcomes))
    worst = worst_errors(verification)
    lengths = sorted({length for errors in worst.values() for length in errors}, key=_by_length)
    by_backend: dict[str, list[tuple[str, list[Cell]]]] = {}
    for (backend, dtype), errors in worst.items():
        by_backend.setdefault(backend, []).append((dtype, [_worst(errors.get(length)) for length in lengths]))
    whole: list[tuple[str, str, str]] = []
    single: list[tuple[str, str, str]] = []
    for (backend, name), result in results.items():
        said = whole if result["outcome"] == "refused" else single
        said += [(backend, refusal, titles[name]) for refusal in result["refusals"]]
        if result["outcome"] in ("stated", "left out"):
            whole.append((backend, result["reason"] or "", titles[name]))
    return Matrix(
        anchor,
        verification,
        list(chapters.items()),
        failures,
        _listed(whole),
        _listed(single),
        lengths,
        list(by_backend.items()),
    )


def _listed(said: Iterable[tuple[str, str, str]]) -> list[Reason]:
    """Reasons that differ in numbers alone, as sizes do, are one."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for backend, reason, title in said:
        found.setdefault((backend, re.sub(r"-?\d+(\.\d+)?", "#", reason)), []).append((reason, title))
    return [
        Reason(backend, alike[0][0], len({reason for reason, _ in alike}) - 1, list(dict.fromkeys(t for _, t in alike)))
        for (backend, _), alike in found.items()
    ]


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
    refused = sum(result["refusals"].values()) if result["outcome"] != "refused" else 0
    details = [f"{refused:,} refused"] if refused else []
    details += ["in part the machine's"] if result["machine"] else []
    covered = [f"{done:,} of {of:,} {name}" for name, (done, of) in result["covered"].items() if name != "values"]
    hint = [f"{result['problems']:,} problems answered", *covered, *result["machine"]]
    return Outcome(
        WORDS[result["outcome"]],
        result["outcome"],
        "; ".join(details),
        "; ".join([*hint, result["reason"]] if result["reason"] else hint),
        failure,
    )
