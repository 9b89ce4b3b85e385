"""What a machine's matrix product and copy reach, beside which a backend's TFLOP/s can be read."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports import formats
from reports.result_file import (
    NUMBER,
    NUMBER_OR_NULL,
    TEXT_OR_NULL,
    Provenance,
    ResultFileError,
    expect,
    open_results,
    read_field,
    read_provenance,
    read_records,
)

FIELDS = {
    **dict.fromkeys(("what", "of"), str),
    "dtype": TEXT_OR_NULL,
    "samples_s": list,
    **dict.fromkeys(("flops", "bytes"), NUMBER_OR_NULL),
}


@dataclass(frozen=True)
class Ceilings:
    path: Path
    provenance: Provenance
    clock: str
    rows: list[dict[str, Any]]  # FIELDS


def load_ceilings(folder: Path) -> list[Ceilings]:
    """Every ceilings*.json of a folder. Raises ResultFileError naming the file that is malformed."""
    return [_ceilings(path) for path in sorted(folder.glob("ceilings*.json"))]


def _ceilings(path: Path) -> Ceilings:
    content = open_results(path, "ceilings")
    rows = read_records(path, content, "rows", FIELDS)
    for index, row in enumerate(rows):
        for at, sample in enumerate(row["samples_s"]):
            expect(path, f"rows[{index}].samples_s[{at}]", sample, NUMBER)
        if not row["samples_s"] or min(row["samples_s"]) <= 0:
            raise ResultFileError(path, f"rows[{index}].samples_s: wanted seconds over 0, given {row['samples_s']!r}")
        if (row["flops"] is None) == (row["bytes"] is None):
            raise ResultFileError(path, f"rows[{index}]: wanted one of flops and bytes")
    return Ceilings(path, read_provenance(path, content), read_field(path, content, "clock", str), rows)


def labels(ceilings: Ceilings) -> list[str]:
    """Each ceiling with its unit: the median of its samples."""
    return [_label(row) for row in ceilings.rows]


def _label(row: dict[str, Any]) -> str:
    seconds = statistics.median(row["samples_s"])
    if row["flops"] is None:
        return f"{row['what']} {formats.size(row['bytes'] / seconds)}/s ({row['of']})"
    return f"{row['what']} in {row['dtype']} {formats.digits(row['flops'] / seconds / 1e12)} TFLOP/s ({row['of']})"
