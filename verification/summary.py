"""What a run of the properties says in a terminal: a table, the verdicts, and each cause of failures once."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import PurePath

from verification.causes import Cause, causes
from verification.outcome import Outcome, verdict
from verification.problems import DTYPES

# Of the reasons of one kind so many are shown; all of them are in the results file.
MOST_REASONS = 8


def lines(
    properties: Mapping[str, Mapping[str, str]],
    outcomes: Sequence[Outcome],
    machine: Mapping[str, str],
    left_out: Mapping[str, str],
) -> list[str]:
    """The whole summary.

    properties  by id, with "title"
    machine     findings about the machine: where each shows, by title
    left_out    backends that cannot run here, with the reason
    """
    labels = short_names([outcome.backend for outcome in outcomes])
    return [
        *_table(properties, outcomes, labels),
        "",
        *_failures(properties, outcomes, labels),
        *_reasons(outcomes, labels),
        *(f"machine: {title}: {where}; no failure of a backend" for title, where in machine.items()),
        *(f"left out: {backend}: {reason}" for backend, reason in left_out.items()),
        "",
        *_verdicts(outcomes, labels),
    ]


def short_names(backends: Iterable[str]) -> dict[str, str]:
    """Each spelling without the folders that are not needed to tell it from the others."""
    every = list(dict.fromkeys(backends))
    short: dict[str, str] = {}
    for spelling in every:
        parts = PurePath(spelling).parts
        ends = (str(PurePath(*parts[-count:])) for count in range(1, len(parts) + 1))
        short[spelling] = next(
            (end for end in ends if sum(f"/{other}".endswith(f"/{end}") for other in every) == 1), spelling
        )
    return short


def _table(
    properties: Mapping[str, Mapping[str, str]], outcomes: Sequence[Outcome], labels: Mapping[str, str]
) -> list[str]:
    """Property x backend, then the worst error over budget of each backend and dtype."""
    cells = {(outcome.property, outcome.backend): outcome.outcome for outcome in outcomes}
    width = max(len(described["title"]) for described in properties.values())
    columns = {backend: max(8, len(label)) for backend, label in labels.items()}

    def line(title: str, texts: Mapping[str, str]) -> str:
        return f"{title:<{width}}" + "".join(f"  {texts[b]:>{columns[b]}}" for b in labels)

    found = [line("", labels)]
    for name, described in properties.items():
        row = {backend: cells.get((name, backend), "") for backend in labels}
        found.append(line(described["title"], {b: "FAIL" if o == "fail" else o for b, o in row.items()}))
    found.append("")
    for dtype in DTYPES:
        ratios = {
            backend: [
                max(o.evidence.worst[dtype].values())
                for o in outcomes
                if o.backend == backend and dtype in o.evidence.worst
            ]
            for backend in labels
        }
        worst = {backend: f"{max(found):.3g}" if found else "-" for backend, found in ratios.items()}
        found.append(line(f"worst error / budget, {dtype}", worst))
    problems = {b: f"{sum(o.evidence.problems for o in outcomes if o.backend == b):,}" for b in labels}
    found.append(line("problems answered", problems))
    return found


def _failures(
    properties: Mapping[str, Mapping[str, str]], outcomes: Sequence[Outcome], labels: Mapping[str, str]
) -> list[str]:
    found: list[str] = []
    for cause in causes(outcomes):
        found.append(f"FAIL: {labels[cause.backend]}: {_headline(cause)}")
        found += [f"    {properties[name]['title']}" for name in cause.properties]
    return found


def _headline(cause: Cause) -> str:
    where = f"{cause.problem}: " if cause.problem else ""
    return f"{where}{cause.reason}"


def _reasons(outcomes: Sequence[Outcome], labels: Mapping[str, str]) -> list[str]:
    """A line for each reason of a refusal, of what was stated or was left out, with the backends that gave it."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for outcome in outcomes:
        if outcome.outcome in ("refused", "stated", "left out"):
            refusals = outcome.evidence.refusals if outcome.outcome == "refused" else {}
            for reason in refusals or (outcome.reason or "",):
                found.setdefault(outcome.outcome, {}).setdefault(reason, {})[labels[outcome.backend]] = None
    shown: list[str] = []
    for kind, reasons in found.items():
        shown += [f"{kind}: {', '.join(names)}: {reason}" for reason, names in islice(reasons.items(), MOST_REASONS)]
        if len(reasons) > MOST_REASONS:
            shown.append(f"{kind}: {len(reasons) - MOST_REASONS:,} more reasons are in the results file")
    return shown


def _verdicts(outcomes: Sequence[Outcome], labels: Mapping[str, str]) -> list[str]:
    width = max(map(len, labels.values()))
    found: list[str] = []
    for backend, label in labels.items():
        name, reason = verdict([outcome for outcome in outcomes if outcome.backend == backend])
        found.append(f"{label:<{width}}  {name}: {reason}")
    return found
