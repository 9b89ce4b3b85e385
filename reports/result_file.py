"""What every result file has in common: schema, kind, provenance, and fields that are checked as they are read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Kinds = type | tuple[type, ...]

NUMBER = (int, float)
NUMBER_OR_NULL = (*NUMBER, type(None))
TEXT_OR_NULL = (str, type(None))


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


def open_results(path: Path, kind: str) -> dict[str, Any]:
    """The content of a result file of that kind. Raises ResultFileError where it is of another."""
    content = read_json(path, nan_allowed=False)
    if (content.get("schema"), content.get("kind")) != (1, kind):
        given = f"schema {content.get('schema')!r}, kind {content.get('kind')!r}"
        raise ResultFileError(path, f"{given}; wanted schema 1, kind {kind!r}")
    return content


def read_provenance(path: Path, content: dict[str, Any]) -> Provenance:
    """What produced the file. Raises ResultFileError where it does not say."""
    given = read_field(path, content, "provenance", dict)
    device = read_field(path, given, "device", dict, "provenance.")
    return Provenance(
        commit=read_field(path, given, "commit", TEXT_OR_NULL, "provenance."),
        dirty=read_field(path, given, "dirty", (bool, type(None)), "provenance."),
        subject=read_field(path, given, "subject", TEXT_OR_NULL, "provenance."),
        date=read_field(path, given, "date", str, "provenance."),
        device_type=read_field(path, device, "type", str, "provenance.device."),
        device_name=read_field(path, device, "name", str, "provenance.device."),
        driver=read_field(path, device, "driver", TEXT_OR_NULL, "provenance.device."),
        threads=read_field(path, given, "threads", (int, type(None)), "provenance."),
        versions=read_field(path, given, "versions", dict, "provenance."),
        command=read_field(path, given, "command", str, "provenance."),
    )


def read_records(path: Path, content: dict[str, Any], name: str, fields: Mapping[str, Kinds]) -> list[dict[str, Any]]:
    """The list of objects under that name, each with these fields and kinds. Raises ResultFileError otherwise."""
    records = read_field(path, content, name, list)
    for index, record in enumerate(records):
        expect(path, f"{name}[{index}]", record, dict)
        for field, wanted in fields.items():
            read_field(path, record, field, wanted, f"{name}[{index}].")
    return records


def read_field(path: Path, record: dict[str, Any], name: str, wanted: Kinds, prefix: str = "") -> Any:
    """One field of an object; `prefix` is where the object stands. Raises ResultFileError."""
    if name not in record:
        raise ResultFileError(path, f"{prefix}{name} is missing")
    expect(path, prefix + name, record[name], wanted)
    return record[name]


def expect(path: Path, name: str, value: object, wanted: Kinds) -> None:
    """Raises ResultFileError unless the value is of one of these kinds."""
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    # bool is an int to isinstance, and True is no sequence length.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ResultFileError(path, f"{name} is {value!r}, wanted {names}")
