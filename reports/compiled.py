"""What the compiler made of the Triton kernels, read from the files of `python -m verification.static`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports import formats
from reports.result_file import (
    NUMBER_OR_NULL,
    TEXT_OR_NULL,
    Provenance,
    expect,
    open_results,
    read_field,
    read_provenance,
    read_records,
)
from reports.tables import Cell

KERNEL_FIELDS = {
    **dict.fromkeys(("architecture", "backend", "kernel", "dtype", "variant"), str),
    **dict.fromkeys(("tile", "tensor_core"), dict),
    "head_dim": int,
    "faults": list,
    "limited_by": TEXT_OR_NULL,
    **dict.fromkeys(
        (
            *("registers", "spill_bytes", "stack_bytes", "shared_bytes", "shared_limit_bytes", "async_copies"),
            *("programs_per_multiprocessor", "inner_loop_instructions", "instructions_per_key"),
        ),
        NUMBER_OR_NULL,
    ),
}
TILE = ("queries", "keys", "warps", "stages")

COLUMNS = (
    ("registers", "registers of a thread"),
    ("spilled", "registers written to memory and read back"),
    ("stack", "local memory of a thread"),
    ("shared memory", "of a program, and what a multiprocessor has for one"),
    ("tensor cores", "instructions that multiply matrices"),
    ("async copies", "instructions that load while others compute"),
    ("programs at once", "on one multiprocessor, and what allows no more"),
    ("instructions a key", "of the inner loop, for one key and one warp"),
)
NOT_KNOWN = Cell("not known", state="none")


@dataclass(frozen=True)
class Static:
    path: Path
    provenance: Provenance
    kernels: list[dict[str, Any]]  # KERNEL_FIELDS


@dataclass(frozen=True)
class Kernel:
    name: str
    facts: str
    tile: str
    faults: list[str]
    cells: list[Cell]


@dataclass(frozen=True)
class Architecture:
    name: str
    count: int
    faulty: list[Kernel]
    without_fault: list[Kernel]
    faults: list[tuple[str, int]]  # sentence, and of how many kernels it is said


@dataclass(frozen=True)
class Compiled:
    provenance: Provenance
    architectures: list[Architecture]
    columns: Sequence[tuple[str, str]] = COLUMNS


def load_statics(folder: Path) -> list[Static]:
    """Every static*.json of a folder. Raises ResultFileError naming the file that is malformed."""
    return [_static(path) for path in sorted(folder.glob("static*.json"))]


def _static(path: Path) -> Static:
    content = open_results(path, "static")
    kernels = read_records(path, content, "rows", KERNEL_FIELDS)
    for index, kernel in enumerate(kernels):
        for name in TILE:
            read_field(path, kernel["tile"], name, int, f"rows[{index}].tile.")
        for name, count in kernel["tensor_core"].items():
            expect(path, f"rows[{index}].tensor_core[{name!r}]", count, int)
        for at, fault in enumerate(kernel["faults"]):
            expect(path, f"rows[{index}].faults[{at}]", fault, str)
    return Static(path, read_provenance(path, content), kernels)


def compiled(static: Static) -> Compiled:
    """The kernels by architecture, those with a fault apart."""
    by_architecture: dict[str, list[Kernel]] = {}
    for kernel in static.kernels:
        by_architecture.setdefault(kernel["architecture"], []).append(_kernel(kernel))
    return Compiled(
        static.provenance,
        [
            Architecture(
                name,
                len(kernels),
                [kernel for kernel in kernels if kernel.faults],
                [kernel for kernel in kernels if not kernel.faults],
                Counter(fault for kernel in kernels for fault in kernel.faults).most_common(),
            )
            for name, kernels in by_architecture.items()
        ],
    )


def _kernel(row: dict[str, Any]) -> Kernel:
    tile = row["tile"]
    backend = "both backends" if row["backend"] == "both" else row["backend"]
    return Kernel(
        f"{backend}, {row['kernel']}",
        f"{row['dtype']}, head dim {row['head_dim']}, {row['variant']}",
        f"{tile['queries']} × {tile['keys']}, {tile['warps']} warps, {tile['stages']} stages",
        row["faults"],
        [
            _number(row["registers"]),
            _bytes(row["spill_bytes"]),
            _bytes(row["stack_bytes"]),
            _bytes(row["shared_bytes"], *_of(row["shared_limit_bytes"])),
            Cell(", ".join(f"{count} {name}" for name, count in row["tensor_core"].items() if count) or "none"),
            _number(row["async_copies"]),
            _number(row["programs_per_multiprocessor"], *_limited_by(row["limited_by"])),
            _ratio(row["instructions_per_key"], *_in_the_loop(row["inner_loop_instructions"])),
        ],
    )


def _number(value: float | None, *details: str) -> Cell:
    return NOT_KNOWN if value is None else Cell(formats.short(value), details)


def _ratio(value: float | None, *details: str) -> Cell:
    return NOT_KNOWN if value is None else Cell(formats.digits(value), details)


def _bytes(value: float | None, *details: str) -> Cell:
    return NOT_KNOWN if value is None else Cell(formats.size(value, formats.short) if value else "0", details)


def _of(limit: float | None) -> tuple[str, ...]:
    return () if limit is None else (f"of {formats.size(limit, formats.short)}",)


def _limited_by(what: str | None) -> tuple[str, ...]:
    return () if what is None else (f"limit: {what}",)


def _in_the_loop(instructions: float | None) -> tuple[str, ...]:
    return () if instructions is None else (f"{instructions:.0f} in the loop",)
