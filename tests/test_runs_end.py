"""Whatever a kernel does, a run that did not finish is never green, and the problem it was at is named."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verification import journal
from verification.problems import Problem

ROOT = Path(__file__).parents[1]
CAUSAL = "test_the_causal_flag_is_the_lower_right_triangle"

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
    tmp_path: Path, fault: str, *arguments: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A run of one property on a kernel with that fault, and what the results file says of it."""
    file, results = tmp_path / "mine.py", tmp_path / "found.json"
    file.write_text(KERNEL.format(fault=fault))
    command = [sys.executable, "-m", "pytest", "verification", "-q", "-p", "no:cacheprovider", "-k=lower_right"]
    command += ["--hypothesis-profile", "quick", "--results", str(results), "--backend", f"{file}:attend", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, timeout=120)
    found = json.loads(results.read_text())["results"] if results.exists() else []
    return ran, next((result for result in found if result["property"] == CAUSAL), {})


@pytest.mark.parametrize("fault", IN_PROCESS)
def test_a_kernel_that_ends_the_run_fails(tmp_path: Path, fault: str) -> None:
    ran, found = verify(tmp_path, fault, "-p", "no:xdist")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    assert found["outcome"] == "fail"
    assert found["reason"] == IN_PROCESS[fault]
    assert "causal=True" in found["problem"]
    assert "failing: " in ran.stdout


@pytest.mark.parametrize("fault", CRASHES)
def test_a_process_that_ends_is_a_failure_at_the_last_problem_it_began(tmp_path: Path, fault: str) -> None:
    ran, found = verify(tmp_path, fault)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert found["outcome"] == "fail"
    assert found["reason"].startswith("the process died, or outlasted the time limit: ")
    assert found["exception"] == "process died"
    assert "causal=True" in found["problem"]
    assert found["backend"].endswith("mine.py:attend")
    assert found["problem"] in ran.stdout


def test_an_endless_loop_is_a_failure_where_there_is_a_time_limit(tmp_path: Path) -> None:
    ran, found = verify(tmp_path, "while True: pass", "--timeout", "6")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert found["outcome"] == "fail"
    assert "causal=True" in found["problem"]


def test_a_time_limit_in_the_process_of_the_run_is_a_failure_in_the_results(tmp_path: Path) -> None:
    ran, found = verify(tmp_path, "while True: pass", "--timeout", "6", "-p", "no:xdist")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    assert found["outcome"] == "fail"
    assert "Timeout" in found["reason"]
    assert "failing: " in ran.stdout


def test_a_refusal_may_begin_with_any_words(tmp_path: Path) -> None:
    ran, found = verify(tmp_path, "raise NotImplementedError('left out: causality')", "-p", "no:xdist")
    assert found["outcome"] == "refused", ran.stdout + ran.stderr
    assert found["reason"] == "left out: causality"
    assert list(found["refusals"]) == ["left out: causality"]
    assert "not verified: " in ran.stdout


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
import json, sys
from pathlib import Path

import pytest

sys.argv[1:] = []
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
