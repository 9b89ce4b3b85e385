"""A chart together with its numbers."""

from dataclasses import dataclass

from reports.charts import Spec
from reports.tables import Table

LARGE, SMALL = 250, 190  # heights in pixels


@dataclass(frozen=True)
class Plot:
    title: str
    better: str
    spec: Spec
    height: int
    table: Table
