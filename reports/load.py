"""The files of the verification and of the sweeps, checked and read into tables."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

OUTCOMES = ("pass", "fail", "refused", "stated")

NUMBER = (int, float)
ROW_FIELDS: dict[str, type | tuple[type, ...]] = {
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
    "reason": (str, type(None)),
    "samples_s": (list, type(None)),
    "flops": (*NUMBER, type(None)),
    "extra_bytes": (*NUMBER, type(None)),
    "error_over_budget": (*NUMBER, type(None)),
    "verified_rows": (int, type(None)),
}


class ResultFileError(ValueError):
    """A result file that cannot be used; the message names the file and what is wrong with it."""

    def __init__(self, path: Path, problem: str):
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True)
class Provenance:
    """What produced a result file."""

    commit: str | None
    dirty: bool | None
    subject: str | None
    date: str
    device_type: str
    device_name: str
    driver: str | None
    threads: int | None
    versions: Mapping[str, str | None]
    command: str

    @property
    def device(self) -> tuple[str, str]:
        return self.device_type, self.device_name

    @property
    def setup(self) -> tuple[object, ...]:
        """Results belong in one line only where all of this is equal."""
        versions = tuple(sorted(self.versions.items(), key=lambda item: item[0]))
        return *self.device, self.driver, self.threads, versions, self.commit, self.dirty


@dataclass(frozen=True)
class Verification:
    path: Path
    provenance: Provenance
    profile: str
    duration_s: float
    backends: list[str]
    properties: pd.DataFrame  # id, title, claim, chapter
    results: pd.DataFrame  # backend, property, outcome, reason, problems, refusals, worst, counterexample


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


def read_json(path: Path, *, nan_allowed: bool) -> dict[str, Any]:
    """The object a JSON file holds. Raises ResultFileError where it holds none."""

    def constant(name: str) -> float:
        if nan_allowed:
            return float(name.replace("Infinity", "inf"))
        raise ResultFileError(path, f"{name} is not JSON; a missing number is null")

    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=constant)
    except UnicodeDecodeError as error:
        raise ResultFileError(path, f"not UTF-8 ({error})") from error
    except json.JSONDecodeError as error:
        raise ResultFileError(path, f"not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ResultFileError(path, f"holds a {type(content).__name__}, wanted an object")
    return content


def _verification(path: Path) -> Verification:
    content = _result_file(path, "verification")
    properties = _records(path, content, "properties", dict.fromkeys(("id", "title", "claim", "chapter"), str))
    results = _records(
        path,
        content,
        "results",
        {
            "backend": str,
            "property": str,
            "outcome": str,
            "reason": (str, type(None)),
            "problems": int,
            "refusals": int,
            "worst": dict,
            "counterexample": (str, type(None)),
        },
    )
    known = {record["id"] for record in properties}
    for index, record in enumerate(results):
        if record["outcome"] not in OUTCOMES:
            wanted = ", ".join(OUTCOMES)
            raise ResultFileError(path, f"results[{index}]: outcome {record['outcome']!r}, wanted one of {wanted}")
        if record["property"] not in known:
            raise ResultFileError(path, f"results[{index}]: property {record['property']!r} is not in properties")
        for dtype, worst in record["worst"].items():
            _expect(path, f"results[{index}].worst[{dtype!r}]", worst, (*NUMBER, type(None)))
    return Verification(
        path,
        _provenance(path, content),
        _field(path, content, "profile", str),
        _field(path, content, "duration_s", NUMBER),
        list(_field(path, content, "backends", list)),
        _table(properties, ("id", "title", "claim", "chapter")),
        _table(
            results,
            ("backend", "property", "outcome", "reason", "problems", "refusals", "worst", "counterexample"),
        ),
    )


def _sweep(path: Path) -> Sweep:
    content = _result_file(path, "sweep")
    rows = []
    for index, record in enumerate(_records(path, content, "rows", ROW_FIELDS)):
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
        _provenance(path, content),
        _field(path, content, "clock", str),
        _field(path, content, "duration_s", NUMBER),
        table,
    )


def _check_samples(path: Path, index: int, samples: list[Any] | None) -> None:
    if not samples or any(isinstance(s, bool) or not isinstance(s, NUMBER) or not s > 0 for s in samples):
        raise ResultFileError(
            path, f"rows[{index}]: status is timed, samples_s must be seconds over 0, given {samples!r}"
        )


def _result_file(path: Path, kind: str) -> dict[str, Any]:
    content = read_json(path, nan_allowed=False)
    if (content.get("schema"), content.get("kind")) != (1, kind):
        given = f"schema {content.get('schema')!r}, kind {content.get('kind')!r}"
        raise ResultFileError(path, f"{given}; wanted schema 1, kind {kind!r}")
    return content


def _provenance(path: Path, content: dict[str, Any]) -> Provenance:
    given = _field(path, content, "provenance", dict)
    device = _field(path, given, "device", dict, "provenance.")
    optional_text = (str, type(None))
    return Provenance(
        commit=_field(path, given, "commit", optional_text, "provenance."),
        dirty=_field(path, given, "dirty", (bool, type(None)), "provenance."),
        subject=_field(path, given, "subject", optional_text, "provenance."),
        date=_field(path, given, "date", str, "provenance."),
        device_type=_field(path, device, "type", str, "provenance.device."),
        device_name=_field(path, device, "name", str, "provenance.device."),
        driver=_field(path, device, "driver", optional_text, "provenance.device."),
        threads=_field(path, given, "threads", (int, type(None)), "provenance."),
        versions=_field(path, given, "versions", dict, "provenance."),
        command=_field(path, given, "command", str, "provenance."),
    )


def _records(
    path: Path, content: dict[str, Any], name: str, fields: Mapping[str, type | tuple[type, ...]]
) -> list[dict[str, Any]]:
    records = _field(path, content, name, list)
    for index, record in enumerate(records):
        _expect(path, f"{name}[{index}]", record, dict)
        for field, wanted in fields.items():
            _field(path, record, field, wanted, f"{name}[{index}].")
    return records


def _field(path: Path, record: dict[str, Any], name: str, wanted: type | tuple[type, ...], prefix: str = "") -> Any:
    if name not in record:
        raise ResultFileError(path, f"{prefix}{name} is missing")
    _expect(path, prefix + name, record[name], wanted)
    return record[name]


def _expect(path: Path, name: str, value: object, wanted: type | tuple[type, ...]) -> None:
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    # bool is an int to isinstance, and True is no sequence length.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ResultFileError(path, f"{name} is {value!r}, wanted {names}")


def _table(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    # dtype=object keeps None as None: pandas would turn an absent reason into NaN, which is truthy.
    table = pd.DataFrame.from_records(list(records), columns=list(columns))
    for name in columns:
        if name not in ("q25_s", "median_s", "q75_s"):
            table[name] = pd.Series([record[name] for record in records], dtype=object)
    return table
