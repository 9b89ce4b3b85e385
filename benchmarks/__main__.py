"""Verifies and times attention backends, each in a process of its own, and writes what it found as JSON.

    python -m benchmarks --backend online --backend my_kernel.py:attend --workload article-512 --seconds 60

A row that fails its verification, or is refused, has its reason in the place of a time.
"""

import argparse
import collections
import io
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import children, clock, compare
from benchmarks.sweep import Plan
from benchmarks.workloads import LENGTHS, STAGES, TIMED_DTYPE, WORKLOADS, lengths

# One character per row while it runs, as pytest does.
MARKS = {
    "timed": ".",
    "failed": "F",
    "refused": "r",
    "crashed": "X",
    "out of memory": "M",
    "left out": "-",
}
WRONG = ("failed", "crashed")

Row = dict[str, Any]


def main() -> int:
    if sys.argv[1:2] == ["compare"]:
        return compare.main(sys.argv[2:])
    start = time.monotonic()
    given = _arguments()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot spell a backend's name

    import implementations

    try:
        device = implementations.device(given.device)
    except ValueError as error:
        return _stop(str(error))
    for option, values, known in (
        ("--workload", given.workload, list(WORKLOADS)),
        ("--stage", given.stage, list(STAGES)),
    ):
        if unknown := [value for value in values if value not in known]:
            return _stop(f"{option} {unknown[0]}: unknown; wanted one of {', '.join(known)}")
    plan = Plan(device.type, tuple(given.workload), tuple(given.stage), tuple(lengths(device.type, given.max_length)))
    if not plan.lengths:
        return _stop(f"--max-length {given.max_length}: the shortest length is {LENGTHS[0]}")
    try:
        backends = [implementations.load(name).name for name in given.backend] or that_run_on(device)
    except (ValueError, ImportError) as error:
        return _stop(f"--backend: {error}")

    # Each child loads what this process has just loaded.
    loading_s = time.monotonic() - start
    rows: list[Row] = []
    for at, backend in enumerate(backends):
        share = (given.seconds - (time.monotonic() - start)) / (len(backends) - at) - loading_s
        rows += _sweep(backend, plan, max(share, 0.0), f"[{at + 1}/{len(backends)}] {backend}")
    duration_s = round(time.monotonic() - start, 1)
    write(given.out, rows, device, given.seconds, duration_s)
    print("\n\n".join(_tables(rows)))
    print(f"\n{len(rows)} rows in {duration_s} s: {given.out}")
    return 1 if any(row["status"] in WRONG for row in rows) else 0


def write(path: Path, rows: list[Row], device: Any, allowed_s: float, duration_s: float) -> None:
    """The result file of a sweep."""
    from verification import provenance

    measured = {"clock": clock.NAME[device.type], "allowed_s": allowed_s, "duration_s": duration_s, "rows": rows}
    provenance.write(path, "sweep", device, **measured)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Verifies, then times, attention backends; writes what it found as JSON.",
        epilog="Exit status: 1 where a backend was wrong or crashed, 2 where the request makes no sense.",
    )
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="SPELLING",
        help="name, module:function or path.py:function; repeatable (default: all that can run here)",
    )
    parser.add_argument("--device", choices=TIMED_DTYPE, help="default: cuda where there is one")
    parser.add_argument("--workload", action="append", metavar="NAME", help=f"{', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--stage", action="append", metavar="STAGE", help=f"{', '.join(STAGES)} (default: all)")
    parser.add_argument("--max-length", type=int, metavar="N", help="no sequence longer than this")
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="time for all backends together; what would not fit is left out (default: 120)",
    )
    parser.add_argument("--out", type=Path, default=Path("reports/data/sweep.json"), metavar="FILE")
    given = parser.parse_args()
    given.workload = list(dict.fromkeys(given.workload or WORKLOADS))
    given.stage = list(dict.fromkeys(given.stage or STAGES))
    given.backend = list(dict.fromkeys(given.backend))
    return given


def _stop(problem: str) -> int:
    print(f"python -m benchmarks: {problem}", file=sys.stderr)
    return 2


def that_run_on(device: Any) -> list[str]:
    """The built-in and registered backends that can run on the device; for any other the reason is printed."""
    import implementations

    able = []
    for name, _, reason in implementations.survey(device):
        if reason is None:
            able.append(name)
        else:
            print(f"without {name}: {reason}", file=sys.stderr)
    return able


def _sweep(backend: str, plan: Plan, seconds: float, title: str) -> list[Row]:
    """The rows of one backend, with a line about them on standard error as they come."""
    start = time.monotonic()
    print(title, end=" ", file=sys.stderr, flush=True)
    rows = children.sweep(
        backend,
        plan,
        seconds,
        [sys.executable, "-m", "benchmarks.sweep"],
        on_row=lambda row: print(MARKS[row["status"]], end="", file=sys.stderr, flush=True),
    )
    counts = collections.Counter(row["status"] for row in rows)
    counted = ", ".join(f"{counts[status]} {status}" for status in MARKS if counts[status])
    print(f" {counted} ({time.monotonic() - start:.0f} s)", file=sys.stderr)
    for reason, count in _reasons(rows).items():
        print(f"    {reason}" + (f" ({count} rows)" if count > 1 else ""), file=sys.stderr)
    return rows


def _reasons(rows: Iterable[Row]) -> collections.Counter[str]:
    """Why rows have no time, each reason once; without those that were left out for want of time."""
    quiet = ("timed", "left out")
    return collections.Counter(f"{row['status']}: {row['reason']}" for row in rows if row["status"] not in quiet)


def _tables(rows: list[Row]) -> Iterable[str]:
    """Medians: for each workload and stage the backends below one another and the lengths side by side."""
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    groups: dict[tuple[str, str], dict[tuple[str, int], Row]] = collections.defaultdict(dict)
    for row in rows:
        groups[row["workload"], row["stage"]][row["backend"], row["seq_len"]] = row
    for (workload, stage), cells in groups.items():
        columns = sorted({length for _, length in cells})
        if not any(row["status"] == "timed" for row in cells.values()):
            continue
        width = max(map(len, backends))
        lines = [f"{workload}, {stage}: median time of one call"]
        lines.append(" " * width + "".join(f"{length:>10}" for length in columns))
        lines += [
            f"{backend:{width}}" + "".join(f"{_cell(cells[backend, length]):>10}" for length in columns)
            for backend in backends
        ]
        yield "\n".join(lines)


def _cell(row: Row) -> str:
    if row["status"] != "timed":
        return "no memory" if row["status"] == "out of memory" else str(row["status"])
    milliseconds = 1e3 * statistics.median(row["samples_s"])
    return f"{milliseconds:.{2 if milliseconds < 10 else 1 if milliseconds < 100 else 0}f} ms"


if __name__ == "__main__":
    sys.exit(main())
