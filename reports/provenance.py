"""What ran where: each file's commit, machine, versions and method as pairs of name and value."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reports.asv_results import AsvResults
from reports.ceilings import Ceilings
from reports.compiled import Static
from reports.frames import groups, having, unique
from reports.kills import KillMatrix
from reports.load import Sweep, Verification
from reports.result_file import Provenance

FLOPS = (
    "forward 4 · batch · heads · queries · keys · head dim over unmasked pairs only "
    "(n (n + 1) / 2 of them under causality), backward 2.5 times that"
)


@dataclass(frozen=True)
class Origin:
    file: str
    shown: bool
    facts: list[tuple[str, str]]


def of_verification(file: Verification, shown: bool) -> Origin:
    facts = [
        (
            "Holds",
            f"{len(file.results)} results, {len(file.properties)} properties, {len(file.backends)} backends",
        ),
        *_facts(file.provenance),
        ("Profile", file.profile),
        ("Took", f"{file.duration_s:.0f} s"),
    ]
    return Origin(file.path.name, shown, facts)


def of_sweep(file: Sweep, shown: bool) -> Origin:
    timed = having(file.rows, status="timed")
    samples = "none" if timed.empty else _range(timed["samples"])
    facts = [
        ("Holds", f"{len(file.rows)} rows, {len(timed)} of them timed"),
        *_facts(file.provenance),
        ("dtype", ", ".join(sorted(unique(file.rows, "dtype")))),
        ("Clock", file.clock),
        ("Samples a row", samples),
        ("FLOPs", FLOPS),
        ("Took", f"{file.duration_s:.0f} s"),
    ]
    return Origin(file.path.name, shown, facts)


def of_kill_matrix(file: KillMatrix, shown: bool) -> Origin:
    holds = f"{len(file.mutants)} faulty backends, {len(file.properties)} properties"
    return Origin(file.path.name, shown, [("Holds", holds), *_facts(file.provenance)])


def of_ceilings(file: Ceilings, shown: bool) -> Origin:
    samples = ", ".join(f"{row['what']}: {len(row['samples_s'])}" for row in file.rows)
    return Origin(file.path.name, shown, [*_facts(file.provenance), ("Clock", file.clock), ("Samples", samples)])


def of_static(file: Static, shown: bool) -> Origin:
    return Origin(file.path.name, shown, [("Holds", f"{len(file.kernels)} kernels"), *_facts(file.provenance)])


def of_asv(results: AsvResults, folder: Path) -> Iterable[Origin]:
    for (machine, env), rows in groups(results.rows, ["machine", "env"]):
        facts = [
            ("Holds", f"{rows['commit'].nunique()} commits, {rows['benchmark'].nunique()} benchmarks"),
            *((key, str(value)) for key, value in results.machines.get(str(machine), {}).items() if key != "version"),
            ("Environment", str(env)),
        ]
        yield Origin(f"{folder.name}/{machine}", True, facts)


def _facts(provenance: Provenance) -> list[tuple[str, str]]:
    commit = provenance.commit or "not known"
    if provenance.subject:
        commit += f" ({provenance.subject})"
    device = f"{provenance.device_name} ({provenance.device_type})"
    if provenance.driver:
        device += f", driver {provenance.driver}"
    if provenance.threads is not None:
        device += f", {provenance.threads} threads"
    tree = {True: "with uncommitted changes", False: "clean", None: "not known"}[provenance.dirty]
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items() if version)
    return [
        ("Commit", commit),
        ("Work tree", tree),
        ("Date", provenance.date),
        ("Device", device),
        ("Versions", versions),
        ("Command", provenance.command),
    ]


def _range(numbers: Iterable[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
