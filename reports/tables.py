"""The numbers of each chart as a table, and in words why a backend has none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports import formats
from reports.frames import groups, having, records, unique, where
from reports.measures import Measure


@dataclass(frozen=True)
class Cell:
    text: str
    details: tuple[str, ...] = ()
    note: int | None = None  # number of its reason below the table
    state: str = "number"  # number, failed, none


NOT_RUN = Cell("not run", state="none")


@dataclass(frozen=True)
class Table:
    caption: str
    columns: list[tuple[str, str]]  # heading, and what it stands for
    rows: list[tuple[str, list[Cell]]]
    reasons: list[str]


@dataclass(frozen=True)
class NotTimed:
    backend: str
    lengths: str
    status: str
    reason: str | None


def over_length(rows: pd.DataFrame, measure: Measure, backends: Sequence[str], where_from: str) -> Table:
    lengths = sorted(unique(rows, "seq_len"))
    counts = unique(having(rows, status="timed"), "samples")
    measured = {(row["backend"], row["seq_len"]): row for row in records(rows)}
    reasons: list[str] = []
    lines = [
        (
            backend,
            [
                _cell(measured[backend, length], measure, reasons, samples_differ=len(counts) > 1)
                if (backend, length) in measured
                else NOT_RUN
                for length in lengths
            ],
        )
        for backend in backends
    ]
    contents = "by sequence length"
    if measure.ranged:
        samples = "samples" if len(counts) > 1 else f"of {counts[0]} samples each"
        contents = f"median, 25 to 75 % range{', ' if len(counts) > 1 else ' '}{samples}"
    columns = [(formats.length(length), f"sequence length {length}") for length in lengths]
    return Table(f"{measure.title} ({where_from}): {contents}", columns, lines, reasons)


def _cell(row: dict[str, Any], measure: Measure, reasons: list[str], *, samples_differ: bool) -> Cell:
    value = row[measure.key]
    if row["status"] != "timed":
        without = _without_time(row, reasons)
        if pd.isna(value):
            return without
        return Cell(measure.text(value), (row["status"],), without.note, without.state)
    if pd.isna(value):
        return Cell("not measured", state="none")
    if not measure.ranged:
        return Cell(measure.text(value))
    span = formats.span(measure.text, row[f"{measure.key}_low"], row[f"{measure.key}_high"])
    return Cell(measure.text(value), (span, f"{row['samples']} samples") if samples_differ else (span,))


def _without_time(row: dict[str, Any], reasons: list[str]) -> Cell:
    """The status, with the number of its reason; a new reason is added to `reasons`."""
    state = "failed" if row["status"] in ("failed", "crashed") else "none"
    if not row["reason"]:
        return Cell(row["status"], state=state)
    if row["reason"] not in reasons:
        reasons.append(row["reason"])
    return Cell(row["status"], (), reasons.index(row["reason"]) + 1, state)


def not_timed(rows: pd.DataFrame, backends: Sequence[str]) -> list[NotTimed]:
    """Rows without a time, one entry for each backend, status and reason."""
    without = where(rows, rows["status"] != "timed").sort_values("seq_len")
    entries = []
    for backend in backends:
        of_backend = having(without, backend=backend)
        for (status, reason), group in groups(of_backend, ["status", "reason"]):
            every = len(group) == len(having(rows, backend=backend))
            lengths = "every length" if every else ", ".join(map(formats.length, group["seq_len"]))
            entries.append(NotTimed(backend, lengths, status, None if pd.isna(reason) else reason))
    return entries


def over_commits(
    rows: pd.DataFrame,
    commits: Sequence[str],
    subjects: dict[str, str],
    backends: Sequence[str],
    caption: str,
) -> Table:
    reasons: list[str] = []
    lines = []
    for backend in backends:
        for _, series in groups(having(rows, backend=backend), ["setup"]):
            by_commit = {row["commit"]: row for row in records(series)}
            cells = [_commit_cell(by_commit[commit], reasons) if commit in by_commit else NOT_RUN for commit in commits]
            lines.append((backend, cells))
    columns = [(formats.commit(commit), subjects.get(commit, commit)) for commit in commits]
    return Table(caption, columns, lines, reasons)


def _commit_cell(row: dict[str, Any], reasons: list[str]) -> Cell:
    if row["status"] != "timed":
        return _without_time(row, reasons)
    details = []
    if row["low_s"] <= row["high_s"]:
        details.append(formats.span(formats.seconds, row["low_s"], row["high_s"]))
    if row["repeat"] > 0:
        details.append(f"{row['repeat']:.0f} samples")
    if row["verdict"]:
        details.append(formats.change(row["verdict"], row["ratio"]))
    return Cell(formats.seconds(row["seconds"]), tuple(details))
