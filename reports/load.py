"""The files of the verification and of the sweeps, checked and read into tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reports.result_file import (
    NUMBER,
    NUMBER_OR_NULL,
    TEXT_OR_NULL,
    Kinds,
    Provenance,
    ResultFileError,
    expect,
    open_results,
    read_field,
    read_provenance,
    read_records,
)

# "left out": there was no time for it.
OUTCOMES = ("pass", "fail", "refused", "stated", "left out")

ROW_FIELDS: dict[str, Kinds] = {
    "backend": str,
    "workload": str,
    "model": str,
    "batch": int,
    "heads": int,
    "kv_heads": int,
    "head_dim": int,
    "seq_len": int,
    "causal": bool,
    "dtype": str,
    "stage": str,
    "status": str,
    "reason": TEXT_OR_NULL,
    "samples_s": (list, type(None)),
    "flops": NUMBER_OR_NULL,
    "extra_bytes": NUMBER_OR_NULL,
    "error_over_budget": NUMBER_OR_NULL,
    "verified_rows": (int, type(None)),
}
RESULT_FIELDS: dict[str, Kinds] = {
    **dict.fromkeys(("backend", "property", "outcome"), str),
    **dict.fromkeys(("reason", "problem", "exception", "counterexample"), TEXT_OR_NULL),
    "problems": int,
    **dict.fromkeys(("refusals", "covered", "worst", "worst_by_length"), dict),
    "machine": list,
}
# "failing" stands for a backend with a property that fails, and for no other.
VERDICTS = (
    "verified",
    "verified, forward only",
    "mostly refused",
    "not verified",
    "unfinished",
    "failing",
)


@dataclass(frozen=True)
class Cause:
    """Failures of one backend that belong together; problem, reason and exception are those of the smallest."""

    backend: str
    problem: str | None
    reason: str
    exception: str
    properties: list[str]  # ids, that of the smallest first


@dataclass(frozen=True)
class Finding:
    """What the machine itself computes wrong, which is no failure of a backend; `report` is the public one."""

    title: str
    where: str
    report: str


@dataclass(frozen=True)
class Verification:
    path: Path
    provenance: Provenance
    profile: str
    duration_s: float
    backends: list[str]
    verdicts: dict[str, tuple[str, str]]  # of each backend: one of VERDICTS, and the reason
    machine: list[Finding]
    causes: list[Cause]
    properties: pd.DataFrame  # id, title, formula, chapter
    results: pd.DataFrame  # RESULT_FIELDS


@dataclass(frozen=True)
class Sweep:
    path: Path
    provenance: Provenance
    clock: str
    duration_s: float
    rows: pd.DataFrame  # ROW_FIELDS without samples_s, plus median_s, q25_s, q75_s, samples


def load_verifications(folder: Path) -> list[Verification]:
    """Every verification*.json of a folder. Raises ResultFileError naming the file that is malformed."""
    return [_verification(path) for path in sorted(folder.glob("verification*.json"))]


def load_sweeps(folder: Path) -> list[Sweep]:
    """Every sweep*.json of a folder. Raises ResultFileError naming the file that is malformed."""
    return [_sweep(path) for path in sorted(folder.glob("sweep*.json"))]


def _verification(path: Path) -> Verification:
    content = open_results(path, "verification")
    if "verdicts" not in content:
        remedy = f"make a new one with `pytest verification/ --results {path}`"
        raise ResultFileError(path, f"of an older version of the suite, without verdicts; {remedy}")
    properties = read_records(path, content, "properties", dict.fromkeys(("id", "title", "formula", "chapter"), str))
    results = read_records(path, content, "results", RESULT_FIELDS)
    known = {record["id"] for record in properties}
    for index, record in enumerate(results):
        if record["outcome"] not in OUTCOMES:
            wanted = ", ".join(OUTCOMES)
            raise ResultFileError(path, f"results[{index}]: outcome {record['outcome']!r}, wanted one of {wanted}")
        if record["property"] not in known:
            raise ResultFileError(path, f"results[{index}]: property {record['property']!r} is not in properties")
        _check_numbers(path, f"results[{index}]", record)
    backends = list(read_field(path, content, "backends", list))
    failing = {(record["backend"], record["property"]) for record in results if record["outcome"] == "fail"}
    finding: dict[str, Kinds] = dict.fromkeys(("title", "where", "report"), str)
    return Verification(
        path,
        read_provenance(path, content),
        read_field(path, content, "profile", str),
        read_field(path, content, "duration_s", NUMBER),
        backends,
        _verdicts(path, content, backends, {backend for backend, _ in failing}),
        [Finding(**{name: one[name] for name in finding}) for one in read_records(path, content, "machine", finding)],
        _causes(path, content, failing),
        _table(properties, ("id", "title", "formula", "chapter")),
        _table(results, tuple(RESULT_FIELDS)),
    )


def _verdicts(
    path: Path, content: dict[str, Any], backends: Sequence[str], failing: set[str]
) -> dict[str, tuple[str, str]]:
    given = read_records(path, content, "verdicts", dict.fromkeys(("backend", "verdict", "reason"), str))
    verdicts = {record["backend"]: (record["verdict"], record["reason"]) for record in given}
    for backend in backends:
        if backend not in verdicts:
            raise ResultFileError(path, f"verdicts: none on {backend!r}")
        verdict, _ = verdicts[backend]
        if verdict not in VERDICTS:
            raise ResultFileError(path, f"verdicts: {verdict!r} on {backend!r}, wanted one of {'; '.join(VERDICTS)}")
        if (verdict == "failing") != (backend in failing):
            fails = "a property fails" if backend in failing else "no property fails"
            raise ResultFileError(path, f"verdicts: {verdict!r} on {backend!r}, of which {fails}")
    return verdicts


def _causes(path: Path, content: dict[str, Any], failing: set[tuple[str, str]]) -> list[Cause]:
    fields: dict[str, Kinds] = {**dict.fromkeys(("backend", "reason", "exception"), str), "problem": TEXT_OR_NULL}
    given = read_records(path, content, "causes", fields | {"properties": list})
    causes = [Cause(**{name: record[name] for name in (*fields, "properties")}) for record in given]
    named = {(cause.backend, name) for cause in causes for name in cause.properties}
    if named != failing:
        backend, name = min(named ^ failing, key=str)
        wrong = "fails and has no cause" if (backend, name) in failing else "has a cause and does not fail"
        raise ResultFileError(path, f"causes: property {name!r} of {backend!r} {wrong}")
    return causes


def _check_numbers(path: Path, place: str, record: dict[str, Any]) -> None:
    for name, counts in record["covered"].items():
        expect(path, f"{place}.covered[{name!r}]", counts, list)
        for count in counts:
            expect(path, f"{place}.covered[{name!r}]", count, int)
    for reason, count in record["refusals"].items():
        expect(path, f"{place}.refusals[{reason!r}]", count, int)
    for dtype, worst in record["worst"].items():
        expect(path, f"{place}.worst[{dtype!r}]", worst, NUMBER_OR_NULL)
    for dtype, lengths in record["worst_by_length"].items():
        expect(path, f"{place}.worst_by_length[{dtype!r}]", lengths, dict)
        for length, worst in lengths.items():
            expect(path, f"{place}.worst_by_length[{dtype!r}][{length!r}]", worst, NUMBER_OR_NULL)


def _sweep(path: Path) -> Sweep:
    content = open_results(path, "sweep")
    rows = []
    for index, record in enumerate(read_records(path, content, "rows", ROW_FIELDS)):
        row = {name: record[name] for name in ROW_FIELDS if name != "samples_s"}
        # Only a timed row has a speed here, whatever else the file says of it.
        samples = record["samples_s"] if record["status"] == "timed" else None
        if samples is not None or record["status"] == "timed":
            _check_samples(path, index, samples)
        quantiles = pd.Series(samples or [math.nan], dtype=float).quantile([0.25, 0.5, 0.75])
        row.update(zip(("q25_s", "median_s", "q75_s"), quantiles, strict=True))
        rows.append(row | {"samples": len(samples or ())})
    columns = [name for name in ROW_FIELDS if name != "samples_s"]
    table = _table(rows, (*columns, "q25_s", "median_s", "q75_s", "samples"))
    for name in ("flops", "extra_bytes", "error_over_budget", "verified_rows"):
        table[name] = table[name].astype(float)
    return Sweep(
        path,
        read_provenance(path, content),
        read_field(path, content, "clock", str),
        read_field(path, content, "duration_s", NUMBER),
        table,
    )


def _check_samples(path: Path, index: int, samples: list[Any] | None) -> None:
    if not samples or any(isinstance(s, bool) or not isinstance(s, NUMBER) or not s > 0 for s in samples):
        raise ResultFileError(
            path, f"rows[{index}]: status is timed, samples_s must be seconds over 0, given {samples!r}"
        )


def _table(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    # dtype=object keeps None as None: pandas would turn an absent reason into NaN, which is truthy.
    table = pd.DataFrame.from_records(list(records), columns=list(columns))
    for name in columns:
        if name not in ("q25_s", "median_s", "q75_s"):
            table[name] = pd.Series([record[name] for record in records], dtype=object)
    return table
