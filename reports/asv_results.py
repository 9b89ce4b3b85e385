"""asv's result folder (format 2) as one table of latencies."""

import ast
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reports.result_file import ResultFileError, read_json

SECONDS = ("s", "seconds")
COLUMNS = (
    "machine",
    "env",
    "setup",
    "commit",
    "date",
    "benchmark",
    "backend",
    "case",
    "status",
    "seconds",
    "low_s",
    "high_s",
    "repeat",
)


@dataclass(frozen=True)
class AsvResults:
    rows: pd.DataFrame  # COLUMNS; low_s and high_s are the ends of asv's 99 % interval
    machines: dict[str, dict[str, str]]
    not_drawn: list[str]  # benchmarks that are no latency or have no parameter called backend


def load_asv(folder: Path) -> AsvResults | None:
    """Latencies of every commit in asv's results folder; None where asv has left no results.

    A benchmark counts as a latency where its unit is seconds. Results of another version of a benchmark are
    left out, as asv itself does. Raises ResultFileError naming the file that is malformed.
    """
    catalogue_path = folder / "benchmarks.json"
    if not catalogue_path.exists():
        return None
    catalogue = {
        name: facts for name, facts in read_json(catalogue_path, nan_allowed=True).items() if isinstance(facts, dict)
    }
    latencies = {
        name: facts
        for name, facts in catalogue.items()
        if facts.get("unit") in SECONDS and "backend" in facts.get("param_names", ())
    }
    rows: list[dict[str, Any]] = []
    machines: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*/*.json")):
        if path.name == "machine.json":
            machines[path.parent.name] = read_json(path, nan_allowed=True)
            continue
        content = read_json(path, nan_allowed=True)
        try:
            rows += _rows(path.parent.name, content, latencies)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ResultFileError(path, f"not a result file of asv, format 2 ({error!r})") from error
    if not rows:
        return None
    return AsvResults(
        pd.DataFrame.from_records(rows, columns=list(COLUMNS)),
        machines,
        sorted(catalogue.keys() - latencies.keys()),
    )


def _rows(machine: str, content: dict[str, Any], latencies: dict[str, Any]) -> list[dict[str, Any]]:
    if content["version"] != 2:
        raise ValueError(f"version {content['version']!r}, wanted 2")
    rows = []
    for name, cells in content["results"].items():
        # asv cuts the empty cells at the end of a row.
        result = dict(zip(content["result_columns"], cells, strict=False))
        if name not in latencies or result["version"] != latencies[name]["version"]:
            continue
        combinations = list(itertools.product(*result["params"]))
        values = result["result"] or [None] * len(combinations)
        for index, (combination, value) in enumerate(zip(combinations, values, strict=True)):
            parameters = dict(zip(latencies[name]["param_names"], map(_value, combination), strict=True))
            backend = parameters.pop("backend")
            status = "failed" if value is None else "skipped" if math.isnan(value) else "timed"
            rows.append(
                {
                    "machine": machine,
                    "env": content["env_name"],
                    # A new driver begins a new line: no commit caused its step.
                    "setup": json.dumps(content["params"], sort_keys=True),
                    "commit": content["commit_hash"],
                    "date": content["date"],
                    "benchmark": name,
                    "backend": backend,
                    "case": ", ".join(
                        f"{key} {value}" if value.isdigit() else value for key, value in parameters.items()
                    ),
                    "status": status,
                    "seconds": value,
                    "low_s": _statistic(result, "stats_ci_99_a", index),
                    "high_s": _statistic(result, "stats_ci_99_b", index),
                    "repeat": _statistic(result, "stats_repeat", index),
                }
            )
    return rows


def _statistic(result: dict[str, Any], name: str, index: int) -> float:
    value = (result.get(name) or {index: None})[index]
    return math.nan if value is None else float(value)


def _value(text: str) -> str:
    """asv writes parameters as their repr."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text
