"""python -m reports: one page from the results that the other suites left."""

import argparse
import sys
from pathlib import Path

from reports import history, load
from reports.asv_results import load_asv
from reports.ceilings import load_ceilings
from reports.compiled import load_statics
from reports.kills import load_kill_matrices
from reports.page import Inputs, render
from reports.result_file import ResultFileError

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        inputs = Inputs(
            load.load_verifications(options.data),
            load.load_sweeps(options.data),
            load_kill_matrices(options.data),
            load_statics(options.data),
            load_ceilings(options.data),
            load_asv(options.asv),
            options.asv,
            history.first_parents(ROOT),
        )
    except ResultFileError as error:
        print(f"reports: {error}", file=sys.stderr)
        return 1
    if inputs.empty:
        commands = ", ".join(f"`{absent.command}`" for absent in inputs.missing)
        print(
            f"reports: no results in {options.data} or {options.asv}; make some with {commands}",
            file=sys.stderr,
        )
        return 1
    page = render(inputs)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page, encoding="utf-8")
    for line in _found(inputs):
        print(line)
    print(f"wrote {options.out}")
    return 0


def _found(inputs: Inputs) -> list[str]:
    lines = [f"{one.path}: {len(one.results)} verification results" for one in inputs.verifications]
    lines += [
        f"{one.path}: {len(one.rows)} rows, {(one.rows['status'] == 'timed').sum()} timed, "
        f"on {one.provenance.device_name}"
        for one in inputs.sweeps
    ]
    lines += [f"{one.path}: {len(one.mutants)} faulty backends" for one in inputs.kill_matrices]
    lines += [f"{one.path}: {len(one.kernels)} compiled kernels" for one in inputs.statics]
    lines += [f"{one.path}: {len(one.rows)} ceilings, of {one.provenance.device_name}" for one in inputs.ceilings]
    if inputs.asv:
        lines.append(f"{inputs.asv_folder}: {inputs.asv.rows['commit'].nunique()} commits")
    return lines + [f"no {absent.what}: run `{absent.command}`" for absent in inputs.missing]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT / "reports" / "data",
        metavar="DIR",
        help="with verification*.json, sweep*.json, kill-matrix*.json, static*.json and ceilings*.json, "
        "whichever there are (default: reports/data)",
    )
    parser.add_argument(
        "--asv",
        type=Path,
        default=ROOT / ".asv" / "results",
        metavar="DIR",
        help="asv's results folder (default: .asv/results)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "reports" / "html" / "index.html",
        metavar="FILE",
        help="the page (default: reports/html/index.html)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
