"""Draws charts where the packages for it are installed; the page has its numbers as tables with them or without."""

import functools
import importlib.util
from collections.abc import Sequence

import pandas as pd

from reports.measures import Measure
from reports.plot import Spec
from reports.styles import Style

# Package to install, and module to import.
NEEDED = {"altair": "altair", "vl-convert-python": "vl_convert"}


def missing_packages() -> list[str]:
    return [package for package, module in NEEDED.items() if importlib.util.find_spec(module) is None]


def over_length(rows: pd.DataFrame, measure: Measure, styles: dict[str, Style], height: int) -> Spec | None:
    """The chart of reports.charts.over_length, or None where it cannot be drawn."""
    if missing_packages():
        return None
    from reports import charts

    return charts.over_length(rows, measure, styles, height)


def over_commits(
    rows: pd.DataFrame, commits: Sequence[str], subjects: dict[str, str], styles: dict[str, Style], height: int
) -> Spec | None:
    """The chart of reports.charts.over_commits, or None where it cannot be drawn."""
    if missing_packages():
        return None
    from reports import charts

    return charts.over_commits(rows, commits, subjects, styles, height)


def script(own: str) -> str:
    """The page's own script, with what draws its charts where there are any."""
    return own if missing_packages() else _bundle(own)


@functools.cache
def _bundle(own: str) -> str:
    import vl_convert

    return vl_convert.javascript_bundle(own)
