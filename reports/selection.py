"""Which of several result files are shown: results of two devices or two commits are never one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pandas as pd

from reports.load import Sweep
from reports.result_file import Provenance

# What makes two rows of a sweep the same measurement.
ROW_KEY = (
    "workload",
    "model",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "seq_len",
    "causal",
    "dtype",
    "stage",
    "backend",
)


class ResultFile(Protocol):
    @property
    def provenance(self) -> Provenance: ...


File = TypeVar("File", bound=ResultFile)


@dataclass(frozen=True)
class Shown(Generic[File]):
    """The newest results of one device, oldest file first."""

    files: list[File]

    @property
    def newest(self) -> File:
        return self.files[-1]

    @property
    def provenance(self) -> Provenance:
        return self.newest.provenance


def newest_per_device(files: Sequence[File]) -> tuple[list[Shown[File]], list[File]]:
    """For each device the files that agree with its newest one in commit and versions; and the rest."""
    by_date = sorted(files, key=lambda file: file.provenance.date)
    shown = []
    for device in sorted({file.provenance.device for file in by_date}):
        of_device = [file for file in by_date if file.provenance.device == device]
        newest = of_device[-1].provenance
        shown.append(Shown([file for file in of_device if file.provenance.setup == newest.setup]))
    used = {id(file) for group in shown for file in group.files}
    return shown, [file for file in by_date if id(file) not in used]


def merged_rows(group: Shown[Sweep]) -> pd.DataFrame:
    """The rows of all files of a group; a measurement that was repeated counts as it was measured last."""
    rows = pd.concat([sweep.rows for sweep in group.files], ignore_index=True)
    return rows.drop_duplicates(list(ROW_KEY), keep="last").reset_index(drop=True)
