"""All sections joined and written as one HTML file that needs no network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from reports import (
    ceilings,
    compiled,
    drawing,
    formats,
    history,
    kills,
    matrix,
    measures,
    provenance,
    sections,
    styles,
    summary,
    timeline,
    verdicts,
)
from reports.asv_results import AsvResults
from reports.ceilings import Ceilings
from reports.compiled import Static
from reports.frames import groups
from reports.kills import KillMatrix
from reports.load import Sweep, Verification
from reports.selection import ResultFile, Shown, merged_rows, newest_per_device

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Inputs:
    verifications: Sequence[Verification]
    sweeps: Sequence[Sweep]
    kill_matrices: Sequence[KillMatrix]
    statics: Sequence[Static]
    ceilings: Sequence[Ceilings]
    asv: AsvResults | None
    asv_folder: Path
    subjects: dict[str, str]  # commit -> subject along the first parents, oldest first

    @property
    def empty(self) -> bool:
        return not (
            self.verifications or self.sweeps or self.kill_matrices or self.statics or self.ceilings or self.asv
        )

    @property
    def missing(self) -> list[summary.Missing]:
        absent = (
            (not self.verifications, "verification results", summary.MAKE_VERIFICATION),
            (not self.sweeps, "sweep results", summary.MAKE_SWEEP),
            (not self.kill_matrices, "kill matrix", summary.MAKE_KILL_MATRIX),
            (not self.statics, "compiled kernels", summary.MAKE_STATIC),
            (not self.ceilings, "ceilings", summary.MAKE_CEILINGS),
            (self.asv is None, "results over commits", summary.MAKE_HISTORY),
        )
        return [summary.Missing(what, command) for is_absent, what, command in absent if is_absent]


def render(inputs: Inputs) -> str:
    """The page as HTML."""
    verified, older_verifications = newest_per_device(inputs.verifications)
    timed, older_sweeps = newest_per_device(inputs.sweeps)
    judged, older_kill_matrices = newest_per_device(inputs.kill_matrices)
    cross_compiled, older_statics = newest_per_device(inputs.statics)
    measured, older_ceilings = newest_per_device(inputs.ceilings)
    verifications = [group.newest for group in verified]
    of_devices = [group.newest for group in measured]
    statics = [group.newest for group in cross_compiled]
    sweeps = [
        (group, _with_measures(group, verifications), f"timed-{index}") for index, group in enumerate(timed, start=1)
    ]
    head = summary.summary(verifications, sweeps)
    judge = [kills.judged(group) for group in judged]
    style = styles.styles(_backends(inputs))
    order = history.order_commits(inputs.asv.rows, inputs.subjects) if inputs.asv else None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.jinja").render(
        missing=inputs.missing,
        summary=head,
        alarms=[*head.alarms, *(alarm for one in judge for alarm in one.alarms)],
        devices=[(group, sections.workloads(group, rows, style, prefix)) for group, rows, prefix in sweeps],
        ceilings={one.provenance.device: ceilings.labels(one) for one in of_devices},
        matrices=[matrix.matrix(one, f"verification-{index}") for index, one in enumerate(verifications, start=1)],
        history=timeline.history(_judged(inputs.asv, order, verifications), order, style)
        if inputs.asv and order
        else [],
        order=order,
        change_ratio=history.CHANGE_RATIO,
        not_drawn=inputs.asv.not_drawn if inputs.asv else [],
        judge=judge,
        compiled=[compiled.compiled(static) for static in statics],
        origins=_origins(
            inputs,
            [*verifications, *statics, *of_devices, *(file for group in [*timed, *judged] for file in group.files)],
        ),
        older=[*older_verifications, *older_sweeps, *older_kill_matrices, *older_statics, *older_ceilings],
        undrawn=drawing.missing_packages(),
        styles=style,
        formats=formats,
        **_inlined(),
    )


def _with_measures(group: Shown[Sweep], verifications: Sequence[Verification]) -> pd.DataFrame:
    failures = verdicts.failures_at(verifications, group.provenance.commit)
    return measures.derive(verdicts.withhold(merged_rows(group), failures))


def _backends(inputs: Inputs) -> list[str]:
    """Every backend once; the baseline first, then in the verification's order."""
    names = [measures.BASELINE]
    for one in inputs.verifications:
        names += one.backends
    for sweep in inputs.sweeps:
        names += list(sweep.rows["backend"])
    if inputs.asv:
        names += list(inputs.asv.rows["backend"])
    return list(dict.fromkeys(names))


def _judged(asv: AsvResults, order: history.CommitOrder, verifications: Sequence[Verification]) -> pd.DataFrame:
    parts = [
        verdicts.withhold(rows, verdicts.failures_at(verifications, commit))
        for (commit,), rows in groups(asv.rows.assign(reason=""), ["commit"])
    ]
    return history.judge(pd.concat(parts), order.commits)


def _origins(inputs: Inputs, files: Sequence[ResultFile]) -> list[provenance.Origin]:
    shown = {id(file) for file in files}
    origins = [provenance.of_verification(file, id(file) in shown) for file in inputs.verifications]
    origins += [provenance.of_sweep(file, id(file) in shown) for file in inputs.sweeps]
    origins += [provenance.of_kill_matrix(file, id(file) in shown) for file in inputs.kill_matrices]
    origins += [provenance.of_ceilings(file, id(file) in shown) for file in inputs.ceilings]
    origins += [provenance.of_static(file, id(file) in shown) for file in inputs.statics]
    return origins + list(provenance.of_asv(inputs.asv, inputs.asv_folder) if inputs.asv else [])


def _inlined() -> dict[str, Any]:
    """Styles and scripts, so that the page loads nothing."""
    return {
        "css": Markup((HERE / "page.css").read_text(encoding="utf-8")),
        "script": Markup(drawing.script((HERE / "page.js").read_text(encoding="utf-8"))),
        "light": Markup(styles.palette(styles.LIGHT)),
        "dark": Markup(styles.palette(styles.DARK)),
        "light_page": styles.LIGHT_PAGE,
        "dark_page": styles.DARK_PAGE,
    }
