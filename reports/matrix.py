"""The verification as a matrix of properties against backends."""

from dataclasses import dataclass

import pandas as pd

from reports import formats
from reports.frames import records
from reports.load import Verification
from reports.verdicts import worst_errors

WORDS = {"pass": "pass", "fail": "FAIL", "refused": "refused", "stated": "stated"}


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
    claim: str
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Failure:
    anchor: str
    backend: str
    title: str
    claim: str
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
    dtypes: list[str]
    worst: list[tuple[str, list[str]]]


def matrix(verification: Verification, anchor: str) -> Matrix:
    results = {(result["backend"], result["property"]): result for result in records(verification.results)}
    chapters: dict[str, list[Property]] = {}
    failures = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for claim in records(verification.properties):
        outcomes = []
        for backend in verification.backends:
            result = results.get((backend, claim["id"]))
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
                        claim["title"],
                        claim["claim"],
                        result["reason"],
                        result["counterexample"],
                    )
                )
            elif result["reason"]:
                reasons.setdefault((backend, result["reason"]), []).append(claim["title"])
        chapters.setdefault(claim["chapter"], []).append(Property(claim["title"], claim["claim"], outcomes))
    worst = worst_errors(verification)
    return Matrix(
        anchor,
        verification,
        list(chapters.items()),
        failures,
        [Reason(backend, reason, titles) for (backend, reason), titles in reasons.items()],
        [str(dtype) for dtype in worst.columns],
        [
            (str(backend), ["not measured" if pd.isna(error) else formats.digits(error) for error in errors])
            for backend, errors in zip(worst.index, worst.to_numpy(), strict=True)
        ],
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
