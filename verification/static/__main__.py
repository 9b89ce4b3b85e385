"""`python -m verification.static`: what the compiler makes of the Triton kernels, by architecture; without a GPU."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from verification.provenance import write
from verification.static.architectures import ARCHITECTURES
from verification.static.configurations import shipped
from verification.static.table import rows_of

COLUMNS = "{:<18}{:<9}{:<8}{:>4}{:>16}{:>10}{:>6}{:>6}{:>8}  {:<15}{:>7}{:>9}  {}"
HEAD = (
    COLUMNS.format(
        *("", "", "", "head", "queries x keys,", "", "", "", "shared", "tensor-core", "async", "instr."),
        "programs a multiprocessor,",
    ),
    COLUMNS.format(
        *("kernel", "dtype", "variant", "dim", "warps, stages", "registers", "spill", "stack", "KiB"),
        *("instructions", "copies", "per key", "limited by"),
    ),
)


def main() -> int:
    """Exit status 1 where a configuration breaks a property."""
    parser = argparse.ArgumentParser(prog="python -m verification.static", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON too")
    asked = parser.parse_args()
    configurations = list(shipped())
    rows = []
    started = time.perf_counter()
    for row in rows_of(configurations):
        rows.append(row)
        message = "; ".join(row["faults"]) or "holds"
        elapsed = time.perf_counter() - started
        name = configurations[len(rows) - 1]
        print(
            f"{len(rows):4} of {len(configurations)}  {elapsed:5.0f} s  {name}: {message}", file=sys.stderr, flush=True
        )
    for architecture in ARCHITECTURES:
        print("", architecture, *HEAD, sep="\n")
        for row in rows:
            if row["architecture"] == architecture:
                print(line(row))
    broken = sum(bool(row["faults"]) for row in rows)
    print(f"\n{len(rows)} configurations, {broken} of them break a property")
    if asked.json:
        write(asked.json, "static", torch.device("cpu"), rows=rows)
        print(f"wrote {asked.json}")
    return 1 if broken else 0


def line(row: dict[str, Any]) -> str:
    """One line of the table, and one for each property that is broken."""
    tile = row["tile"]
    backend = row["backend"].removesuffix("_triton")
    message = COLUMNS.format(
        f"{backend} {row['kernel']}" if row["kernel"] == "forward" else row["kernel"],
        row["dtype"],
        row["variant"],
        row["head_dim"],
        f"{tile['queries']} x {tile['keys']}, {tile['warps']}, {tile['stages']}",
        row["registers"],
        row["spill_bytes"],
        row["stack_bytes"],
        f"{row['shared_bytes'] / 1024:.1f}",
        ", ".join(f"{count} {kind}" for kind, count in row["tensor_core"].items()) or "none",
        row["async_copies"],
        f"{row['instructions_per_key']:.2f}",
        f"{row['programs_per_multiprocessor']}, {row['limited_by']}",
    )
    return "\n".join([message, *(f"    BROKEN: {fault}" for fault in row["faults"])])


if __name__ == "__main__":
    sys.exit(main())
