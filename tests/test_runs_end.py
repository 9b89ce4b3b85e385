"""Whatever a kernel does, a run that did not finish is never green, and the problem it was at is named."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verification import journal
from verification.problems import Problem

ROOT = Path(__file__).parents[1]

KERNEL = """
import os, signal, sys
import pytest
import implementations
from hypothesis.errors import UnsatisfiedAssumption

eager = implementations.load("eager").attend


def attend(q, k, v, **options):
    if options.get("causal"):
        {fault}
    return eager(q, k, v, **options)
"""

# What a kernel does, and what its reason says.
IN_PROCESS = {
    "sys.exit(0)": "the call ends the run: SystemExit: 0",
    "pytest.exit('x', 0)": "the call ends the run: Exit: x",
    "pytest.skip('not me')": "the call ends the run: Skipped: not me",
    "raise UnsatisfiedAssumption('x')": "the call ends the run: UnsatisfiedAssumption: x",
    "raise KeyError('oh')": "KeyError: 'oh'",
    "raise GeneratorExit": "the call ends the run: GeneratorExit: ",
}
CRASHES = ["os._exit(0)", "os.kill(os.getpid(), signal.SIGSEGV)", "os.kill(os.getpid(), signal.SIGKILL)"]


def verify(
    tmp_path: Path, faults: Sequence[str], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """A run of one property on kernels with those faults, and what the results file says of each."""
    results, chosen = tmp_path / "found.json", list[str]()
    for number, fault in enumerate(faults):
        file = tmp_path / f"kernel_{number}.py"
        file.write_text(KERNEL.format(fault=fault))
        chosen += ["--backend", f"{file}:attend"]
    command = [sys.executable, "-m", "pytest", "verification", "-q", "-p", "no:cacheprovider", "-k=lower_right"]
    command += ["--hypothesis-profile", "quick", "--results", str(results), *chosen, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    found = {result["backend"]: result for result in json.loads(results.read_text())["results"]}
    return ran, [found[backend] for backend in chosen[1::2]]


def test_a_kernel_that_ends_the_run_or_never_ends_fails_and_a_refusal_may_begin_with_any_words(tmp_path: Path) -> None:
    faults = [*IN_PROCESS, "while True: pass", "raise NotImplementedError('left out: causality')"]
    ran, (*ended, endless, refused) = verify(tmp_path, faults, "-p", "no:xdist", "--timeout", "8")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert [(one["outcome"], one["reason"]) for one in ended] == [("fail", reason) for reason in IN_PROCESS.values()]
    assert all(one["problem"].startswith("Problem(") for one in ended)
    assert "failing: " in ran.stdout
    assert endless["outcome"] == "fail"
    assert "Timeout" in endless["reason"]
    assert (refused["outcome"], refused["reason"]) == ("refused", "left out: causality")
    assert list(refused["refusals"]) == ["left out: causality"]


def test_a_process_that_ends_or_never_does_is_a_failure_at_the_last_problem_it_began(tmp_path: Path) -> None:
    ran, found = verify(tmp_path, [*CRASHES, "while True: pass"], "--timeout", "8")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    for one in found:
        assert one["outcome"] == "fail"
        assert one["reason"].startswith("the process died, or outlasted the time limit: ")
        assert one["exception"] == "process died"
        assert one["problem"].startswith("Problem(")
        assert one["problem"] in ran.stdout


def test_the_journal_keeps_the_last_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(journal.FOLDER, str(tmp_path))
    monkeypatch.setattr(journal, "_open", None)
    journal.begin_property("test_x", "mine", {"id": "x"})
    assert journal.last(tmp_path, "test_x") == {
        "test": "test_x",
        "backend": "mine",
        "property": {"id": "x"},
        "problem": None,
    }
    journal.begin(Problem(queries=300, keys=400, causal=True))
    journal.begin(Problem(keys=2))
    kept = journal.last(tmp_path, "test_x")
    assert kept is not None
    assert kept["problem"] == "Problem(keys=2)"
    assert journal.last(tmp_path, "test_y") is None
    opened = journal._open  # pyright: ignore[reportPrivateUsage]
    assert opened is not None
    os.close(opened)


DRAWN = """
import json

from verification import profiles
from verification.judge import Subject
from verification.problems import Problem
from verification.property import for_all
from verification.space import problems

profiles.choose_seed({seed})
from hypothesis import settings
settings.load_profile({profile!r}) if {seed} is None else None
seen = []

def at(subject, problem):
    subject.evidence.calls += 1
    seen.append(repr(problem))

for_all(problems(queries=range(1, 9), keys=range(1, 9), dim=range(1, 9)), strength=2)(at)(Subject("eager"))
print(json.dumps([settings().derandomize, profiles.seed(), seen]))
"""


def drawn(seed: int | None, profile: str = "default", **environment: str) -> tuple[bool, int, list[str]]:
    ran = subprocess.run(
        [sys.executable, "-c", DRAWN.format(seed=seed, profile=profile)],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, check=True,
    )  # fmt: skip
    derandomised, of, seen = json.loads(ran.stdout)
    return derandomised, of, seen


def test_a_seed_changes_what_is_covered_and_drawn() -> None:
    derandomised, seed, at_first = drawn(None)
    assert (derandomised, seed) == (True, 0)
    assert drawn(None)[2] == at_first
    derandomised, seed, other = drawn(7)
    assert (derandomised, seed) == (False, 7)
    assert set(other) != set(at_first)


@pytest.mark.parametrize("ci", ["", "true"])
def test_nightly_looks_elsewhere_each_time(ci: str) -> None:
    environment = {"CI": ci} if ci else {}
    derandomised, seed, _ = drawn(None, "nightly", **environment)
    assert not derandomised
    assert seed != drawn(None, "nightly", **environment)[1]


def test_the_option_changes_what_is_asked(tmp_path: Path) -> None:
    """Seen in the problems that a kernel fails at, which are not made smaller under a profile without shrinking."""
    file = tmp_path / "mine.py"
    calls = tmp_path / "calls"
    file.write_text(
        "import implementations\n\n"
        "def attend(q, k, v, **options):\n"
        f"    print(*q.shape, *k.shape, q.dtype, file=open({str(calls)!r}, 'a'))\n"
        "    return implementations.load('eager').attend(q, k, v, **options)\n"
    )
    seen: list[str] = []
    for seed in ("3", "3", "4"):
        command = [sys.executable, "-m", "pytest", "verification", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-k=one_head", "--hypothesis-profile", "quick", "--hypothesis-seed", seed]
        calls.unlink(missing_ok=True)
        command += ["--backend", f"{file}:attend"]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        seen.append(calls.read_text())
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
