"""What the verification says of each backend, and what follows for its speed: no speed beside a failure."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from reports.frames import having
from reports.load import OUTCOMES, Provenance, Verification

SPEED_COLUMNS = ["median_s", "q25_s", "q75_s", "extra_bytes"]


@dataclass(frozen=True)
class Standing:
    """How one backend fared in one run of the verification."""

    backend: str
    counts: dict[str, int]  # outcome -> number of properties
    failing: list[str]  # titles

    @property
    def verdict(self) -> str:
        if self.failing:
            return "fails"
        if self.counts["pass"] + self.counts["stated"]:
            return "verified"
        return "refuses" if self.counts["refused"] else "not verified"


def standings(verification: Verification) -> list[Standing]:
    titles = dict(zip(verification.properties["id"], verification.properties["title"], strict=True))
    found = []
    for backend in verification.backends:
        results = having(verification.results, backend=backend)
        counts = {outcome: len(having(results, outcome=outcome)) for outcome in OUTCOMES}
        failing = [titles[name] for name in having(results, outcome="fail")["property"]]
        found.append(Standing(backend, counts, failing))
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
        if standing.verdict == "verified" and standing.backend not in failing
    }


def withhold(rows: pd.DataFrame, failures: dict[str, str]) -> pd.DataFrame:
    """The rows with nothing of a backend's speed left where it fails; status and reason say so instead."""
    kept = rows.copy()
    failing = kept["backend"].isin(list(failures))
    timed = failing & (kept["status"] == "timed")
    kept.loc[timed, "reason"] = kept.loc[timed, "backend"].map(failures)
    kept.loc[timed, "status"] = "failed"
    without_speed = kept["status"] != "timed"
    speed = [name for name in (*SPEED_COLUMNS, "seconds", "low_s", "high_s") if name in kept]
    kept.loc[without_speed, speed] = float("nan")
    return kept


def worst_errors(verification: Verification) -> pd.DataFrame:
    """Worst error over budget: a row a backend, a column a dtype, over all properties that measure one."""
    worst = [
        {"backend": backend, "dtype": dtype, "error": float(value)}
        for backend, errors in zip(verification.results["backend"], verification.results["worst"], strict=True)
        for dtype, value in errors.items()
        if value is not None
    ]
    if not worst:
        return pd.DataFrame()
    table = pd.DataFrame.from_records(worst).pivot_table(
        index="backend", columns="dtype", values="error", aggfunc="max"
    )
    return table.reindex([backend for backend in verification.backends if backend in table.index])


def _at(verifications: Sequence[Verification], commit: str | None) -> list[Verification]:
    return [verification for verification in verifications if verification.provenance.commit == commit]
