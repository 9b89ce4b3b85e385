"""The history section: charts, tables and the changes found, for each machine."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd

from reports import drawing, formats, tables
from reports.frames import groups, records, unique, where
from reports.history import CommitOrder
from reports.plot import SMALL, Plot
from reports.styles import Style

SHOWN_AT_ONCE = 8


@dataclass(frozen=True)
class Change:
    commit: str
    subject: str
    benchmark: str
    case: str
    backend: str
    verdict: str
    text: str
    before_after: str


@dataclass(frozen=True)
class HistoryLine:
    """The history of one machine and environment."""

    title: str
    backends: list[str]
    changes: list[Change]
    plots: list[Plot] = field(default_factory=list)
    unchanged: list[Plot] = field(default_factory=list)  # where there are too many to show at once


def history(judged: pd.DataFrame, order: CommitOrder, styles: dict[str, Style]) -> list[HistoryLine]:
    """A line for each machine and environment; `judged` as history.judge returns it."""
    lines = []
    for (machine, env), rows in groups(judged, ["machine", "env"]):
        backends = [backend for backend in styles if backend in unique(rows, "backend")]
        line = HistoryLine(f"{machine}, {env}", backends, list(_changes(rows, order)))
        many = len(rows.drop_duplicates(["benchmark", "case"])) > SHOWN_AT_ONCE
        for (benchmark, case), cells in groups(rows, ["benchmark", "case"]):
            if cells.dropna(subset=["seconds"]).empty:
                continue
            spec = drawing.over_commits(cells, order.commits, order.subjects, styles, SMALL)
            title = f"{benchmark}, {case}" if case else benchmark
            caption = f"Latency by commit ({title}): median, 99 % interval, samples"
            table = tables.over_commits(cells, order.commits, order.subjects, backends, caption)
            quiet = many and not any(cells["verdict"])
            (line.unchanged if quiet else line.plots).append(Plot(title, "lower is better", spec, SMALL, table))
        lines.append(line)
    return lines


def _changes(rows: pd.DataFrame, order: CommitOrder) -> Iterator[Change]:
    changed = where(rows, rows["verdict"] != "").sort_values("position", ascending=False, kind="stable")
    for row in records(changed):
        before = row["seconds"] / row["ratio"]
        yield Change(
            formats.commit(row["commit"]),
            order.subjects.get(row["commit"], ""),
            row["benchmark"],
            row["case"],
            row["backend"],
            row["verdict"],
            formats.change(row["verdict"], row["ratio"]),
            f"{formats.seconds(before)} to {formats.seconds(row['seconds'])}",
        )
