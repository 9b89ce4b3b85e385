"""The verification in parallel processes and held to a deadline, its results in one file.

Each job is a pytest of its own with the plugin `verification.deadline`, and without the settings of pyproject.toml:
they ask for plugins that a GPU box need not have. That is why pytest-xdist does not do this: a GPU box has only pytest
and hypothesis, and a kernel that never returns can be ended from outside its process alone.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verification.outcome import Evidence, Failure, Outcome, from_json
from verification.results import write_results

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "verification"

# Each holds a context on the GPU.
MOST_PROCESSES = 16

Result = dict[str, Any]
# A property by "id", "title", "formula" and "chapter".
Described = dict[str, str]


@dataclass(frozen=True)
class Job:
    """One process: a backend and the files that judge it, named as the results name chapters."""

    backend: str
    chapters: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{re.sub(r'[^A-Za-z0-9_]+', '-', self.backend)}-{'-'.join(self.chapters)}"[:100]


@dataclass(frozen=True)
class Lost:
    """A job that left no results behind, and why."""

    job: Job
    reason: str
    died_in: str | None  # a test; None where it was stopped for want of time, which is no fault


def chapters() -> tuple[str, ...]:
    """The files of verification/ that judge a backend, without test_ and .py."""
    paths = sorted(FOLDER.glob("test_*.py"))
    judging = [path for path in paths if "subject: Subject" in path.read_text(encoding="utf-8")]
    return tuple(path.stem.removeprefix("test_") for path in judging)


def verify(
    path: Path,
    jobs: Sequence[Job],
    device: torch.device,
    profile: str,
    *,
    deadline: float,
    grace_s: float,
    logs: Path,
) -> list[Outcome]:
    """The outcomes of all jobs, a process a core, also written to `path` in the format of `pytest --results`.

    The tests end at `deadline`, in seconds since 1970, and a process that has not ended `grace_s` seconds later is
    stopped. What was not judged for either reason is in the results as "left out".
    """
    start = time.time()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(min(MOST_PROCESSES, os.cpu_count() or 1)) as pool:
        parts = list(
            pool.map(
                lambda job: _run(job, device.type, profile, deadline, grace_s, Path(folder), logs / f"{job.name}.txt"),
                jobs,
            )
        )
    properties, outcomes = _joined(parts)
    write_results(path, device, properties, outcomes, profile=profile, duration_s=time.time() - start)
    return outcomes


def _run(
    job: Job, device_type: str, profile: str, deadline: float, grace_s: float, folder: Path, log: Path
) -> Result | Lost:
    """The results of one job, as its pytest wrote them."""
    results = folder / f"{job.name}.json"
    limit_s = deadline + grace_s - time.time()
    if time.time() > deadline:
        return Lost(job, "the time for the verification was used up", None)
    arguments = [
        *(sys.executable, "-m", "pytest", *(str(FOLDER / f"test_{chapter}.py") for chapter in job.chapters), "-v"),
        *("-c", os.devnull, "--rootdir", str(ROOT), "--confcutdir", str(ROOT), "-p", "no:cacheprovider"),
        *("-p", "no:xdist"),  # a job is a process of its own
        *("-p", "verification.deadline", "--deadline", str(deadline), "--hypothesis-profile", profile),
        *("--backend", job.backend, "--device", device_type, "--results", str(results)),
    ]
    with log.open("w", encoding="utf-8") as said:
        try:
            ended = subprocess.run(
                arguments, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Lost(job, f"stopped {grace_s:.0f} s after the time for the verification was used up", None)
    if results.exists():
        return json.loads(results.read_text(encoding="utf-8"))
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    tests = [match[1] for line in lines if (match := re.search(r"::(test_\w+)", line))]
    died = f"its process ended with status {ended.returncode} and without results"
    return Lost(job, died, tests[-1] if tests else "test_before_the_first_test")


def _joined(parts: Iterable[Result | Lost]) -> tuple[list[Described], list[Outcome]]:
    """Properties and outcomes of all parts; of a lost one as many properties as others had in its files."""
    every = list(parts)
    written = [part for part in every if not isinstance(part, Lost)]
    properties: dict[str, Described] = {one["id"]: one for part in written for one in part["properties"]}
    outcomes = [from_json(kept) for part in written for kept in part["results"]]
    for part in every:
        if not isinstance(part, Lost):
            continue
        known = [one for one in properties.values() if one["chapter"] in part.job.chapters]
        named = {one["chapter"] for one in known}
        known += [_whole(chapter) for chapter in part.job.chapters if chapter not in named]
        if part.died_in and part.died_in not in map(_test_of, known):
            title = part.died_in.removeprefix("test_").replace("_", " ")
            known.append({"id": part.died_in, "title": title, "formula": "", "chapter": "crashes"})
        properties |= {one["id"]: one for one in known}
        outcomes += [_of_lost(part, one) for one in known]
    return list(properties.values()), outcomes


def _whole(chapter: str) -> Described:
    """What stands for the properties of a file of which no process said what they are."""
    name = f"test_{chapter}.py"
    return {"id": name, "title": f"all of {name}", "formula": "", "chapter": chapter}


def _test_of(one: Described) -> str:
    """The name of the test without what it is parametrised with."""
    return one["id"].partition("[")[0]


def _of_lost(lost: Lost, one: Described) -> Outcome:
    died_in_it = lost.died_in == _test_of(one)
    reason = f"{lost.reason}, in {lost.died_in}" if lost.died_in else lost.reason
    failure = Failure(reason, None, "process died", reason) if died_in_it else None
    kind = "fail" if failure else "left out"
    return Outcome(lost.job.backend, one["id"], kind, reason, Evidence(), failure, threads=1, duration_s=0.0)
