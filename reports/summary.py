"""The head of the page: is it right, which is fastest, what is wrong."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from reports import formats
from reports.frames import groups, unique, where
from reports.kills import Report, public_report
from reports.load import OUTCOMES, Cause, Finding, Sweep, Verification
from reports.measures import STAGES, Fastest, fastest, panels
from reports.result_file import Provenance
from reports.sections import panel_title
from reports.selection import Shown
from reports.verdicts import VERIFIED, Standing, failures_at, standings, verified_at

MAKE_VERIFICATION = "pytest verification/ --results reports/data/verification.json"
MAKE_SWEEP = "python -m benchmarks"
MAKE_KILL_MATRIX = "python -m verification.mutants"
MAKE_STATIC = "python -m verification.static --json reports/data/static.json"
MAKE_CEILINGS = "python -m benchmarks.ceilings"
MAKE_HISTORY = "asv run"

# In place of any verdict but "failing", where a timed workload had a wrong answer or a crash.
BREAKS = "breaking when timed"
# Of verdicts in a sentence.
ORDER = ("failing", BREAKS, "verified, forward only", "mostly refused", "unfinished", "not verified")

# Status of a row that means the backend is at fault, and the words for it.
BROKEN = {"failed": "gives wrong answers on", "crashed": "crashes on"}


@dataclass(frozen=True)
class Missing:
    what: str
    command: str


@dataclass(frozen=True)
class Verdicts:
    """One run of the verification: each backend's results, and its verdict, timed workloads counted in."""

    provenance: Provenance
    standings: list[tuple[Standing, str]]
    machine: list[tuple[Finding, Report]]

    @property
    def outcomes(self) -> list[str]:
        """The columns: "left out" is one where there was no time for something only."""
        left_out = any(standing.counts["left out"] for standing, _ in self.standings)
        return [outcome for outcome in OUTCOMES if outcome != "left out" or left_out]


@dataclass(frozen=True)
class Winners:
    """The fastest verified backend of each stage, on one problem and device."""

    anchor: str
    workload: str
    panel: str
    device: str
    by_stage: dict[str, Fastest | None]


@dataclass(frozen=True)
class Summary:
    sentences: list[str]
    alarms: list[str]
    verdicts: list[Verdicts]
    winners: list[Winners]
    stages: list[str]


def summary(verifications: Sequence[Verification], sweeps: Sequence[tuple[Shown[Sweep], pd.DataFrame, str]]) -> Summary:
    """`sweeps`: each device's files, rows as measures.derive returns them, and the anchor of its sections."""
    winners: list[Winners] = []
    broken: dict[tuple[str, str], list[str]] = {}
    broken_at: set[tuple[str, str | None]] = set()
    for group, rows, prefix in sweeps:
        commit = group.provenance.commit
        winners += _winners(group, rows, prefix, set(verified_at(verifications, commit)))
        already_failing = failures_at(verifications, commit)
        for backend, status, place in _broken_rows(rows, already_failing, group.provenance):
            broken.setdefault((backend, status), []).append(place)
            broken_at.add((backend, commit))
    verdicts = [
        Verdicts(
            one.provenance,
            [
                (standing, _verdict(standing, (standing.backend, one.provenance.commit) in broken_at))
                for standing in standings(one)
            ],
            [(finding, public_report(finding.report)) for finding in one.machine],
        )
        for one in verifications
    ]
    alarms = [
        _failing(standing, [cause for cause in one.causes if cause.backend == standing.backend])
        for one in verifications
        for standing in standings(one)
        if standing.failing
    ]
    alarms += [f"{backend} {BROKEN[status]} {'; '.join(places)}." for (backend, status), places in broken.items()]
    alarms += _not_the_same_commit(verifications, [group for group, _, _ in sweeps])
    stages = [stage for stage in STAGES if any(stage in one.by_stage for one in winners)]
    sentences = [_verified_sentence(one) for one in verdicts] + _fastest_sentence(winners)
    return Summary(sentences, alarms, verdicts, winners, stages)


def _failing(standing: Standing, causes: Sequence[Cause]) -> str:
    properties = _count(len(standing.failing), "property", "properties")
    smallest = "; ".join(cause.problem or cause.reason for cause in causes)
    return f"{standing.backend} fails {properties} for {_count(len(causes), 'cause', 'causes')}: {smallest}."


def _verdict(standing: Standing, broken: bool) -> str:
    return BREAKS if broken and not standing.failing else standing.verdict


def _verified_sentence(verdicts: Verdicts) -> str:
    by_verdict: dict[str, list[str]] = {}
    for standing, verdict in verdicts.standings:
        by_verdict.setdefault(verdict, []).append(standing.backend)
    count = len(by_verdict.pop(VERIFIED, ()))
    total = len(verdicts.standings)
    verb = "is" if 1 in (count, total) else "are"
    of = _count(total, "backend", "backends")
    sentences = [f"{count} of {of} {verb} verified on {verdicts.provenance.device_name}."]
    for verdict, backends in sorted(by_verdict.items(), key=lambda item: ORDER.index(item[0])):
        verb = "is" if len(backends) == 1 else "are"
        sentences.append(f"{_list(backends)} {verb} {verdict}.")
    return " ".join(sentences)


def _fastest_sentence(winners: Sequence[Winners]) -> list[str]:
    found = [best.backend for one in winners for best in one.by_stage.values() if best]
    if not found:
        return []
    (first, wins), *others = Counter(found).most_common()
    rest = "".join(f", {backend} in {count}" for backend, count in others)
    return [f"Fastest verified: {first} in {wins} of {_count(len(found), 'comparison', 'comparisons')}{rest}."]


def _winners(group: Shown[Sweep], rows: pd.DataFrame, prefix: str, verified: set[str]) -> list[Winners]:
    return [
        Winners(
            f"{prefix}-{index}",
            workload,
            panel_title(panel),
            group.provenance.device_name,
            {stage: fastest(of_stage, verified) for (stage,), of_stage in groups(panel, ["stage"])},
        )
        for index, ((workload,), of_workload) in enumerate(groups(rows, ["workload"]), start=1)
        for panel in panels(of_workload)
    ]


def _broken_rows(
    rows: pd.DataFrame, already_failing: dict[str, str], provenance: Provenance
) -> Iterator[tuple[str, str, str]]:
    """Backend, status and place of wrong answers and crashes; a backend that fails a property is left out."""
    broken = where(rows, rows["status"].isin(list(BROKEN)) & ~rows["backend"].isin(list(already_failing)))
    for (backend, status, workload, _, _, stage), group in groups(
        broken, ["backend", "status", "workload", "dtype", "causal", "stage"]
    ):
        lengths = ", ".join(map(formats.length, sorted(unique(group, "seq_len"))))
        yield (
            backend,
            status,
            f"{workload} ({panel_title(group)}, {stage}, {provenance.device_name}) at {lengths}",
        )


def _not_the_same_commit(verifications: Sequence[Verification], groups: Sequence[Shown[Sweep]]) -> list[str]:
    commits = {one.provenance.commit for one in verifications}
    return [
        f"The times on {group.provenance.device_name} are of {formats.commit(group.provenance.commit)}, "
        f"the verification of {', '.join(sorted(map(formats.commit, commits)))}: "
        "verify the commit that was timed."
        for group in groups
        if commits and group.provenance.commit not in commits
    ]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
