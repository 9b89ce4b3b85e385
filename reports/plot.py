"""A chart together with its numbers."""

from dataclasses import dataclass
from typing import Any

from reports.tables import Table

Spec = dict[str, Any]  # of Vega-Lite

LARGE, SMALL = 250, 190  # heights in pixels


@dataclass(frozen=True)
class Plot:
    title: str
    better: str
    spec: Spec | None  # None where no chart can be drawn here
    height: int
    table: Table
