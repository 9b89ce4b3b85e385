"""`python -m verification.mutants`: put every property to every mutant, and write down which kills which."""

import argparse
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

# Also on a machine with a GPU: the mutants of the Triton kernels are made for the tiles of the interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

from verification.mutants import MUTANTS
from verification.mutants.matrix import kill_matrix
from verification.mutants.properties import properties
from verification.provenance import write


def main() -> int:
    """Exit status 1 where a mutant is not killed by the property it names."""
    known = {mutant.name: mutant for mutant in itertools.chain.from_iterable(MUTANTS.values())}
    parser = argparse.ArgumentParser(prog="python -m verification.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help="these mutants; without it: all")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: reports/data/kill-matrix.json, with --only kill-matrix-only.json beside it",
    )
    asked = parser.parse_args()
    out = asked.out or Path("reports/data") / ("kill-matrix-only.json" if asked.only else "kill-matrix.json")
    chosen = [known[name] for name in asked.only or known]
    count = itertools.count(1)
    started = time.perf_counter()

    def progress(row: dict[str, Any]) -> None:
        killers, crashes = len(row["killed_by"]), len(row["crashed"])
        message = f"killed by {killers} of {len(properties())}" if killers else "SURVIVED"
        if row["named"] not in row["killed_by"]:
            message += f", NOT killed by {row['named']}, which it names"
        if crashes:
            message += f", crashed in {crashes}"
        elapsed = time.perf_counter() - started
        print(f"{next(count):4} of {len(chosen)}  {elapsed:5.0f} s  {row['name']}: {message}", flush=True)

    matrix = kill_matrix(chosen, list(properties()), progress, os.cpu_count() or 1)
    for name in matrix["kills_nothing"]:
        print(f"kills nothing: {name}")
    write(out, "kill-matrix", torch.device("cpu"), **matrix)
    print(f"wrote {out}")
    return 0 if all(row["named"] in row["killed_by"] for row in matrix["mutants"]) else 1


if __name__ == "__main__":
    sys.exit(main())
