"""The verdict of the verification on each backend; one that fails has no speed on the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from reports.frames import having, records
from reports.load import OUTCOMES, Verification
from reports.result_file import Provenance

ALL_LENGTHS = "any"
SPEED_COLUMNS = ["median_s", "q25_s", "q75_s", "extra_bytes"]


# The verdict that a speed needs in order to be praised; those of load.VERDICTS that begin so are not enough.
VERIFIED = "verified"
# The property whose coverage stands beside a backend, as it does in the terminal.
OUTPUT_FORMULA = "test_the_output_agrees_with_the_formula"


@dataclass(frozen=True)
class Standing:
    """How one backend fared in one run of the verification."""

    backend: str
    verdict: str  # as the file has it
    reason: str
    counts: dict[str, int]  # outcome -> number of properties
    failing: list[str]  # titles
    problems: int  # answered
    covered: dict[str, tuple[int, int]]  # of OUTPUT_FORMULA, by "pairs" and "triples": answered, of how many


def standings(verification: Verification) -> list[Standing]:
    titles = dict(zip(verification.properties["id"], verification.properties["title"], strict=True))
    found = []
    for backend in verification.backends:
        results = having(verification.results, backend=backend)
        counts = {outcome: len(having(results, outcome=outcome)) for outcome in OUTCOMES}
        failing = [titles[name] for name in having(results, outcome="fail")["property"]]
        formula = records(having(results, property=OUTPUT_FORMULA))
        covered = formula[0]["covered"] if formula else {}
        verdict, reason = verification.verdicts[backend]
        problems = sum(results["problems"])
        found.append(Standing(backend, verdict, reason, counts, failing, problems, covered))
    return found


def failures_at(verifications: Sequence[Verification], commit: str | None) -> dict[str, str]:
    """Backend -> why it has no speed at that commit.

    Two results of an unknown commit may be of the same code, so those count as the same commit.
    """
    reasons = {}
    for verification in _at(verifications, commit):
        for standing in standings(verification):
            if standing.failing:
                reasons[standing.backend] = f"fails verification: {'; '.join(standing.failing)}"
    return reasons


def verified_at(verifications: Sequence[Verification], commit: str | None) -> dict[str, Provenance]:
    """Backend -> what verified it at that commit; without those that fail anywhere at that commit."""
    failing = failures_at(verifications, commit)
    return {
        standing.backend: verification.provenance
        for verification in _at(verifications, commit)
        for standing in standings(verification)
        if standing.verdict == VERIFIED and standing.backend not in failing
    }


def withhold(rows: pd.DataFrame, failures: dict[str, str]) -> pd.DataFrame:
    """The rows without the speed of backends that fail; status and reason stand in its place."""
    kept = rows.copy()
    failing = kept["backend"].isin(list(failures))
    timed = failing & (kept["status"] == "timed")
    kept.loc[timed, "reason"] = kept.loc[timed, "backend"].map(failures)
    kept.loc[timed, "status"] = "failed"
    without_speed = kept["status"] != "timed"
    speed = [name for name in (*SPEED_COLUMNS, "seconds", "low_s", "high_s") if name in kept]
    kept.loc[without_speed, speed] = float("nan")
    return kept


def worst_errors(verification: Verification) -> dict[tuple[str, str], dict[str, float]]:
    """Worst error over budget of each backend and dtype over all properties that measure one: by length, and of all."""
    worst: dict[tuple[str, str], dict[str, float]] = {}
    for result in records(verification.results):
        for dtype, of_all in result["worst"].items():
            errors = {ALL_LENGTHS: of_all} | result["worst_by_length"].get(dtype, {})
            known = worst.setdefault((result["backend"], dtype), {})
            for length, error in errors.items():
                # An error that is not finite has no number in JSON.
                known[length] = max(math.inf if error is None else error, known.get(length, 0.0))
    return {
        (backend, dtype): worst[backend, dtype]
        for backend in verification.backends
        for dtype in sorted(dtype for name, dtype in worst if name == backend)
    }


def _at(verifications: Sequence[Verification], commit: str | None) -> list[Verification]:
    return [verification for verification in verifications if verification.provenance.commit == commit]
