"""Vega-Lite specifications: one chart a measure over sequence length, one a benchmark over commits.

Colours are CSS variables, so the same chart serves light, dark and print; widths follow the page.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from reports import formats, frames
from reports.frames import unique, where
from reports.measures import BASELINE, ERROR, LATENCY, MEMORY, SPEEDUP, THROUGHPUT, Measure
from reports.plot import Spec
from reports.styles import Style

LINES, LIMIT, CHANGES = "lines", "limit", "changes"  # names of the data in a specification


@dataclass(frozen=True)
class Axis:
    """Ticks that are labelled one by one, so that the axis and the tables write a number alike."""

    scale: alt.Scale
    ticks: list[float]
    labels: list[str]

    def x(self, **options: Any) -> alt.X:
        return alt.X("x:Q", scale=self.scale, axis=self._axis(grid=False, **options))

    def y(self, field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=self.scale, axis=self._axis())

    def _axis(self, **options: Any) -> alt.Axis:
        label = f"{json.dumps(self.labels)}[indexof({json.dumps(self.ticks)}, datum.value)]"
        return alt.Axis(values=self.ticks, labelExpr=label, title=None, **options)


def over_length(rows: pd.DataFrame, measure: Measure, styles: dict[str, Style], height: int) -> Spec:
    """One measure of one panel and stage against sequence length, for the rows that have it."""
    drawn = where(rows, rows[measure.key].notna())
    lengths = sorted(unique(rows, "seq_len"))
    records = []
    for row in frames.records(drawn):
        low, high = (row.get(f"{measure.key}_{end}", row[measure.key]) for end in ("low", "high"))
        records.append(
            {
                "x": row["seq_len"],
                "y": row[measure.key],
                "low": low,
                "high": high,
                "backend": row["backend"],
                "Length": formats.length(row["seq_len"]),
                measure.title: measure.text(row[measure.key]),
                "25-75 %": formats.span(measure.text, low, high),
                "Samples": row["samples"],
            }
        )
    _number_runs(records, lengths)
    x = _length_axis(lengths).x(labelOverlap="parity")
    y = _value_axis(measure, records)
    tooltips = ["backend", "Length", measure.title]
    if measure.ranged:
        tooltips += ["25-75 %", "Samples"]
    layers = _lines(records, x, y, styles, tooltips, band=measure.ranged)
    limit = {ERROR: "limit", SPEEDUP: BASELINE}.get(measure)
    if limit is None:
        return _finish(layers, height, {LINES: records})
    return _finish([*_limit(y), *layers], height, {LINES: records, LIMIT: [{"limit": 1, "label": limit}]})


def over_commits(
    rows: pd.DataFrame,
    commits: Sequence[str],
    subjects: dict[str, str],
    styles: dict[str, Style],
    height: int,
) -> Spec:
    """Latency of one benchmark against commit order, a ring round each change."""
    drawn = where(rows, rows["seconds"].notna())
    setups = unique(drawn, "setup")
    records = [
        {
            "x": row["position"],
            "y": row["seconds"],
            # asv gives no interval where it has too few samples.
            "low": row["seconds"] if math.isnan(row["low_s"]) else row["low_s"],
            "high": row["seconds"] if math.isnan(row["high_s"]) else row["high_s"],
            "backend": row["backend"],
            "setup": setups.index(row["setup"]),
            "Commit": formats.commit(row["commit"]),
            "Subject": subjects.get(row["commit"], "not known here"),
            "Latency": formats.seconds(row["seconds"]),
            "Change": formats.change(row["verdict"], row["ratio"]) or "none",
            "changed": row["verdict"] != "",
        }
        for row in frames.records(drawn)
    ]
    _number_runs(records, sorted(unique(rows, "position")), extra_key="setup")
    positions = [float(position) for position in range(len(commits))]
    x = Axis(
        alt.Scale(domain=[-0.5, len(commits) - 0.5], nice=False, zero=False),
        positions,
        [formats.commit(commit) for commit in commits],
    ).x(labelAngle=-40, labelOverlap="greedy")
    y = _value_axis(LATENCY, records)
    layers = _lines(records, x, y, styles, ["backend", "Commit", "Subject", "Latency", "Change"], band=True)
    rings = (
        alt.Chart(alt.NamedData(CHANGES))
        .mark_point(filled=False, size=190, stroke="var(--ink)", strokeWidth=1.5)
        .encode(x=x, y=y.y("y"))
    )
    changes = [record for record in records if record["changed"]]
    return _finish([*layers, rings], height, {LINES: records, CHANGES: changes})


def _number_runs(records: list[dict[str, Any]], measured: Sequence[float], extra_key: str = "backend") -> None:
    """Gives records a `run`: a line joins neighbours among the measured positions, and stops at a gap."""
    place = {position: index for index, position in enumerate(measured)}
    last: dict[tuple[str, object], tuple[int, int]] = {}
    for record in sorted(records, key=lambda record: record["x"]):
        key = (record["backend"], record[extra_key])
        index = place[record["x"]]
        previous, run = last.get(key, (index - 1, 0))
        run += index != previous + 1
        last[key] = (index, run)
        record["run"] = f"{key[0]}/{key[1]}/{run}"


def _lines(
    records: list[dict[str, Any]],
    x: alt.X,
    y: Axis,
    styles: dict[str, Style],
    tooltips: Iterable[str],
    *,
    band: bool,
) -> list[alt.Chart]:
    backends = [name for name in styles if any(record["backend"] == name for record in records)]
    chosen = [styles[name] for name in backends]

    def by_backend(channel: Callable[..., Any], values: list[Any]) -> Any:
        return channel("backend:N", scale=alt.Scale(domain=backends, range=values), legend=None)

    colour = by_backend(alt.Color, [style.colour for style in chosen])
    base = alt.Chart(alt.NamedData(LINES)).encode(x=x, y=y.y("y"), color=colour, detail="run:N")
    line = base.mark_line(strokeWidth=1.75).encode(
        strokeDash=by_backend(alt.StrokeDash, [list(style.dash) for style in chosen])
    )
    points = base.mark_point(filled=True, opacity=1, size=52).encode(
        shape=by_backend(alt.Shape, [style.marker for style in chosen]),
        tooltip=[alt.Tooltip(f"{name}:N", title=name.capitalize()) for name in tooltips],
    )
    if not band:
        return [line, points]
    area = base.mark_area(opacity=0.16, line=False).encode(y=y.y("low"), y2="high:Q")
    return [area, line, points]


def _limit(y: Axis) -> list[alt.Chart]:
    """A rule at 1 across the plot, labelled at its right end."""
    base = alt.Chart(alt.NamedData(LIMIT)).encode(y=y.y("limit"))
    rule = base.mark_rule(stroke="var(--ink)", strokeWidth=1, opacity=0.75)
    name = base.mark_text(align="right", baseline="bottom", dy=-3, fontSize=11, color="var(--muted)").encode(
        x=alt.value("width"), text="label:N"
    )
    return [rule, name]


def _length_axis(lengths: Sequence[int]) -> Axis:
    ticks = [float(length) for length in lengths]
    domain = [ticks[0] / 2**0.2, ticks[-1] * 2**0.2]
    return Axis(
        alt.Scale(type="log", base=2, domain=domain, nice=False),
        ticks,
        [formats.length(tick) for tick in ticks],
    )


def _value_axis(measure: Measure, records: Sequence[dict[str, Any]]) -> Axis:
    low, high = min(record["low"] for record in records), max(record["high"] for record in records)
    if measure is THROUGHPUT:
        ticks = _round_steps(high)
        scale = alt.Scale(domain=[0, max(high * 1.05, ticks[-1])], nice=False)
    elif measure is ERROR:
        # Linear near zero, where right kernels are, and a kernel that is wrong by thousands still fits.
        domain = [0, max(1.6, high * 1.3)]
        ticks = [tick for tick in (0, 0.1, 0.3, 1, 3, *_decades(10, high)) if tick <= domain[1]]
        scale = alt.Scale(type="symlog", constant=0.1, domain=domain, nice=False)
    elif measure is SPEEDUP:
        domain = [min(0.45, low / 1.15), max(2.2, high * 1.15)]
        ticks = _powers_of_two(*domain, most=7)
        scale = alt.Scale(type="log", base=2, domain=domain, nice=False)
    elif measure is MEMORY and low == 0:
        positive = min((record["low"] for record in records if record["low"] > 0), default=1)
        ticks = [0.0, *_powers_of_two(positive, max(high, positive), most=5)]
        scale = alt.Scale(type="symlog", constant=positive, domain=[0, max(high, positive) * 1.3], nice=False)
    elif measure is MEMORY:
        ticks = _powers_of_two(low / 1.5, high * 1.5, most=6)
        scale = alt.Scale(type="log", base=2, domain=[low / 1.5, high * 1.5], nice=False)
    else:
        domain = [low / 1.2, high * 1.2]
        ticks = _log_ticks(*domain)
        scale = alt.Scale(type="log", domain=domain, nice=False)
    return Axis(scale, ticks, [measure.text(tick, formats.short) for tick in ticks])


def _log_ticks(low: float, high: float) -> list[float]:
    decades = _decades(10 ** math.floor(math.log10(low)), high)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [float(f"{step * decade:.2g}") for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks


def _decades(first: float, high: float) -> list[float]:
    return [first * 10**step for step in range(max(0, math.ceil(math.log10(max(high, first) / first))) + 1)]


def _powers_of_two(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, math.ceil((last - first + 1) / most))
    # Counted from zero so that 1 stays a tick.
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def _round_steps(high: float) -> list[float]:
    magnitude = 10 ** math.floor(math.log10(high))
    step = next(factor * magnitude / 10 for factor in (2, 2.5, 5, 10, 20) if high / (factor * magnitude / 10) <= 5)
    return [float(f"{step * index:.6g}") for index in range(math.floor(high / step) + 1)]


def _finish(layers: Sequence[alt.Chart], height: int, datasets: dict[str, list[dict[str, Any]]]) -> Spec:
    chart = alt.layer(*layers).properties(width="container", height=height, background="transparent")
    spec = (
        chart.configure(font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            gridColor="var(--rule)",
            domainColor="var(--rule-strong)",
            tickColor="var(--rule-strong)",
            labelColor="var(--muted)",
            labelFontSize=11,
            labelPadding=5,
            tickSize=4,
        )
        .configure_axisY(domain=False, ticks=False, minExtent=46)
        .to_dict()
    )
    # Added last: Altair copies and validates all it is given, data included, several times.
    return spec | {"datasets": datasets}
