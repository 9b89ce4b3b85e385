"""The kill matrix: which property rejects which faulty backend, read from its files and arranged for the page."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.result_file import (
    Provenance,
    ResultFileError,
    expect,
    open_results,
    read_field,
    read_provenance,
    read_records,
)
from reports.selection import Shown

MUTANT_FIELDS = {
    **dict.fromkeys(("name", "base", "kind", "report", "why", "named"), str),
    **dict.fromkeys(("killed_by", "crashed"), list),
}
ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")

# Of a property's cell in the row of a mutant, in pixels.
PITCH, CELL_WIDTH, CELL_HEIGHT = 7, 6, 12


@dataclass(frozen=True)
class KillMatrix:
    path: Path
    provenance: Provenance
    properties: list[str]
    mutants: list[dict[str, Any]]  # MUTANT_FIELDS


@dataclass(frozen=True)
class Report:
    text: str
    url: str | None


@dataclass(frozen=True)
class Cells:
    """One row of the matrix as SVG paths, a cell for each property: killed, crashed, and the one that was named."""

    killed: str
    crashed: str
    named: str


@dataclass(frozen=True)
class Fault:
    name: str
    base: str
    why: str
    reports: list[Report]
    named: str
    caught: bool  # by the property that it names
    killers: list[str]
    crashed: list[str]
    cells: Cells


@dataclass(frozen=True)
class Killer:
    number: int
    title: str
    kills: int
    only_killer_of: list[str]


@dataclass(frozen=True)
class Judged:
    """What the page says of one kill matrix."""

    provenance: Provenance
    kinds: list[tuple[str, list[Fault]]]
    killers: list[Killer]
    faults: int
    missed: list[Fault]  # not rejected by the property that they name
    kills_nothing: list[str]
    all_cells: str

    @property
    def alarms(self) -> list[str]:
        """For the head of the page: its verdicts are worth no more than their judge."""
        names = ", ".join(fault.name for fault in self.missed)
        return (
            [f"The judge does not reject every faulty backend by the property named for it: {names}."] if names else []
        )

    @property
    def width(self) -> int:
        return PITCH * len(self.killers)

    @property
    def height(self) -> int:
        return CELL_HEIGHT

    @property
    def ticks(self) -> list[tuple[int, int]]:
        """The numbers of every fifth property, and where they stand."""
        return [(number, _x(number - 1) + CELL_WIDTH // 2) for number in range(5, len(self.killers) + 1, 5)]


def load_kill_matrices(folder: Path) -> list[KillMatrix]:
    """Every kill-matrix*.json of a folder. Raises ResultFileError naming the file that is malformed."""
    return [_kill_matrix(path) for path in sorted(folder.glob("kill-matrix*.json"))]


def _kill_matrix(path: Path) -> KillMatrix:
    content = open_results(path, "kill-matrix")
    properties = read_field(path, content, "properties", list)
    for index, name in enumerate(properties):
        expect(path, f"properties[{index}]", name, str)
    mutants = read_records(path, content, "mutants", MUTANT_FIELDS)
    for index, mutant in enumerate(mutants):
        for name in (mutant["named"], *mutant["killed_by"], *mutant["crashed"]):
            if name not in properties:
                raise ResultFileError(path, f"mutants[{index}]: property {name!r} is not in properties")
    return KillMatrix(path, read_provenance(path, content), properties, mutants)


def judged(group: Shown[KillMatrix]) -> Judged:
    """The files of a group as one matrix; a mutant that stands in several counts as it was judged last."""
    properties = list(dict.fromkeys(name for file in group.files for name in file.properties))
    mutants = list({mutant["name"]: mutant for file in group.files for mutant in file.mutants}.values())
    kinds: dict[str, list[Fault]] = {}
    for mutant in mutants:
        kinds.setdefault(mutant["kind"], []).append(_fault(mutant, properties))
    killers = [
        Killer(
            number,
            _title(name),
            sum(name in mutant["killed_by"] for mutant in mutants),
            [mutant["name"] for mutant in mutants if mutant["killed_by"] == [name]],
        )
        for number, name in enumerate(properties, start=1)
    ]
    return Judged(
        group.provenance,
        list(kinds.items()),
        killers,
        len(mutants),
        [fault for faults in kinds.values() for fault in faults if not fault.caught],
        [killer.title for killer in killers if not killer.kills],
        _path(range(len(properties))),
    )


def _fault(mutant: dict[str, Any], properties: Sequence[str]) -> Fault:
    position = {name: index for index, name in enumerate(properties)}
    return Fault(
        mutant["name"],
        mutant["base"],
        mutant["why"],
        [public_report(text) for text in mutant["report"].split(", ") if text],
        _title(mutant["named"]),
        mutant["named"] in mutant["killed_by"],
        [_title(name) for name in mutant["killed_by"]],
        [_title(name) for name in mutant["crashed"]],
        Cells(
            _path(position[name] for name in mutant["killed_by"]),
            _path(position[name] for name in mutant["crashed"]),
            _path([position[mutant["named"]]]),
        ),
    )


def public_report(text: str) -> Report:
    """With an address where it is owner/repository#number."""
    issue = ISSUE.fullmatch(text)
    return Report(text, f"https://github.com/{issue[1]}/issues/{issue[2]}" if issue else None)


def _title(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _path(positions: Iterable[int]) -> str:
    return "".join(f"M{_x(at)},0h{CELL_WIDTH}v{CELL_HEIGHT}h-{CELL_WIDTH}z" for at in positions)


def _x(position: int) -> int:
    return PITCH * position
