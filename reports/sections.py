"""A section for each workload on each device: charts and tables for every stage."""

from dataclasses import dataclass

import pandas as pd

from reports import drawing, formats, tables
from reports.frames import groups, having, records, unique
from reports.load import Sweep
from reports.measures import LATENCY, MEASURES, STAGES, THROUGHPUT, panels
from reports.plot import LARGE, SMALL, Plot
from reports.result_file import Provenance
from reports.selection import Shown
from reports.styles import Style


@dataclass(frozen=True)
class Stage:
    title: str
    backends: list[str]  # that have a line in these charts
    not_timed: list[tables.NotTimed]
    plots: list[Plot]
    without: list[str]  # measures that no row has


@dataclass(frozen=True)
class Panel:
    title: str
    facts: str
    stages: list[Stage]


@dataclass(frozen=True)
class Workload:
    anchor: str
    name: str
    model: str
    provenance: Provenance
    panels: list[Panel]


def workloads(group: Shown[Sweep], rows: pd.DataFrame, styles: dict[str, Style], prefix: str) -> list[Workload]:
    """The sections of one device; `rows` as measures.derive returns them."""
    sections = []
    for index, ((name,), of_workload) in enumerate(groups(rows, ["workload"]), start=1):
        sections.append(
            Workload(
                f"{prefix}-{index}",
                name,
                "; ".join(unique(of_workload, "model")),
                group.provenance,
                [_panel(panel, styles) for panel in panels(of_workload)],
            )
        )
    return sections


def panel_title(panel: pd.DataFrame) -> str:
    """What sets one panel of a workload apart."""
    first = records(panel)[0]
    return f"{first['dtype']}, {'causal' if first['causal'] else 'full attention'}"


def _panel(panel: pd.DataFrame, styles: dict[str, Style]) -> Panel:
    first = records(panel)[0]
    sizes = unique(panel, "batch")
    batch = f"batch {sizes[0]}"
    if len(sizes) > 1:
        by_length = dict(sorted(zip(panel["seq_len"], panel["batch"], strict=True)))
        batch = "batch " + ", ".join(f"{size} at {formats.length(at)}" for at, size in by_length.items())
    heads = f"{first['heads']} heads"
    if first["kv_heads"] != first["heads"]:
        heads += f", {first['kv_heads']} of keys and values"
    present = unique(panel, "stage")
    stages = [stage for stage in dict.fromkeys([*STAGES, *present]) if stage in present]
    title = panel_title(panel)
    return Panel(
        title,
        f"{heads}, head dim {first['head_dim']}, {batch}",
        [
            _stage(stage, having(panel, stage=stage), styles, f"{first['workload']}, {title}, {stage}")
            for stage in stages
        ],
    )


def _stage(stage: str, rows: pd.DataFrame, styles: dict[str, Style], where: str) -> Stage:
    backends = [backend for backend in styles if backend in unique(rows, "backend")]
    plots, without = [], []
    for measure in MEASURES:
        height = LARGE if measure in (LATENCY, THROUGHPUT) else SMALL
        if rows.dropna(subset=[measure.key]).empty:
            without.append(measure.title)
            continue
        spec = drawing.over_length(rows, measure, styles, height)
        table = tables.over_length(rows, measure, backends, where)
        plots.append(Plot(measure.title, measure.better, spec, height, table))
    values = [measure.key for measure in MEASURES]
    with_value = unique(rows.dropna(subset=values, how="all"), "backend")
    drawn = [backend for backend in backends if backend in with_value]
    return Stage(stage.capitalize(), drawn, tables.not_timed(rows, backends), plots, without)
