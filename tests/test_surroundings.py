"""What one backend changes for the others is undone, when its file is loaded and after each call, and named."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import implementations
from verification import budget, oracle
from verification.judge import Subject
from verification.problems import Problem
from verification.surroundings import SETTINGS, undone
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement

ROOT = Path(__file__).parents[1]
eager = implementations.load("eager")

# What a file or a call may do, and what it is called.
CHANGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "torch's default dtype": (
        "torch.set_default_dtype(torch.float64)",
        lambda: torch.set_default_dtype(torch.float64),
    ),
    "torch's default device": ("torch.set_default_device('meta')", lambda: torch.set_default_device("meta")),
    "torch's grad mode": ("torch.set_grad_enabled(False)", lambda: torch.set_grad_enabled(False)),
    "torch's number of threads": ("torch.set_num_threads(3)", lambda: torch.set_num_threads(3)),
    "torch's deterministic algorithms": (
        "torch.use_deterministic_algorithms(True)",
        lambda: torch.use_deterministic_algorithms(True),
    ),
    "torch's float32 matmul precision": (
        "torch.set_float32_matmul_precision('medium')",
        lambda: torch.set_float32_matmul_precision("medium"),
    ),
    "torch.softmax": (
        "torch.softmax = lambda scores, dim: 0 * scores",
        lambda: setattr(torch, "softmax", lambda scores, dim: 0 * scores),
    ),
    "verification.oracle.attention": (
        "import verification.oracle; verification.oracle.attention = None",
        lambda: setattr(oracle, "attention", None),
    ),
    "verification.budget.ratio": (
        "import verification.budget; verification.budget.ratio = lambda *_: torch.zeros(1)",
        lambda: setattr(budget, "ratio", lambda *_: torch.zeros(1)),
    ),
}
# The judge itself computes with none of these; other backends do.
AT_IMPORT_ONLY = {"torch.nn.functional.softmax": "torch.nn.functional.softmax = lambda x, dim: 0 * x"}

BAD = """
import torch
import implementations

attend = implementations.load("eager").attend
{changes}
"""


def settings_now() -> dict[str, Any]:
    return {name: read() for name, (read, _) in SETTINGS.items()}


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "verification", "-q", "-p", "no:cacheprovider", *arguments]
    command += ["--hypothesis-profile", "quick"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("name", CHANGES)
def test_a_call_that_changes_something_for_the_others_fails_with_its_name(name: str) -> None:
    _, change = CHANGES[name]

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = eager.attend(q, k, v, **options)
        change()
        return out

    before = settings_now()
    with pytest.raises(AssertionError, match=f"the call changed {name}$"):
        agreement.at(Subject(replace(eager, attend=attend)), Problem(queries=3, keys=5, dim=4))
    assert settings_now() == before
    agreement.at(Subject("eager"), Problem(queries=3, keys=5, dim=4))  # all is whole again


def test_what_a_call_changes_is_undone_where_it_raises_too() -> None:
    def attend(*_: Tensor, **__: Any) -> Tensor:
        torch.set_grad_enabled(False)
        raise OSError("no such kernel")

    with pytest.raises(AssertionError, match="the call changed torch's grad mode"):
        agreement.at(Subject(replace(eager, attend=attend)), Problem())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("thoroughly", [False, True])
def test_what_changes_nothing_is_not_accused(thoroughly: bool) -> None:
    with undone(thoroughly=thoroughly) as changed:
        torch.manual_seed(0)
        with torch.no_grad():
            torch.ones(2).softmax(0)
    assert changed == []


def test_what_a_file_changes_when_it_is_loaded_is_undone_and_named(tmp_path: Path) -> None:
    file, results = tmp_path / "bad.py", tmp_path / "found.json"
    statements = [statement for statement, _ in CHANGES.values()] + [*AT_IMPORT_ONLY.values()]
    file.write_text(BAD.format(changes="\n".join(statements)))
    chosen = ("-k=one_head", "--backend", f"{file}:attend", "--backend", "eager")
    ran = verify(*chosen, "--results", str(results))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (line,) = {line for line in ran.stdout.splitlines() if "when it was loaded" in line}
    assert line.startswith(f"{file}:attend changed ")
    for name in (*CHANGES, *AT_IMPORT_ONLY):
        assert name in line
    found = json.loads(results.read_text())["results"]
    assert {(result["backend"], result["outcome"]) for result in found if result["backend"] == "eager"} == {
        ("eager", "pass")
    }
    assert {result["threads"] for result in found} == {1}


def test_what_a_call_does_to_others_is_its_failure_alone(tmp_path: Path) -> None:
    file, results = tmp_path / "bad.py", tmp_path / "found.json"
    file.write_text(
        "import torch\nimport implementations\n\n"
        "def attend(q, k, v, **options):\n"
        "    softmax = torch.nn.functional.softmax\n"
        "    out = implementations.load('eager').attend(q, k, v, **options)\n"
        "    torch.nn.functional.softmax = lambda x, dim: 0 * x\n"
        "    return out\n"
    )
    ran = verify(
        *("-k=one_head", "--backend", f"{file}:attend", "--backend", "eager"),
        *("--results", str(results)),
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = {(r["backend"], r["property"]): r for r in json.loads(results.read_text())["results"]}
    assert {r["outcome"] for (backend, _), r in found.items() if backend == "eager"} == {"pass"}
    (failed,) = {r["reason"] for (backend, _), r in found.items() if backend != "eager"}
    assert failed == "it changed torch.nn.functional.softmax"


def test_two_files_of_one_name_have_two_columns(tmp_path: Path) -> None:
    results = tmp_path / "found.json"
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "one" / "mine.py").write_text(BAD.format(changes=""))
    (tmp_path / "two" / "mine.py").write_text("def attend(q, k, v, **options):\n    return 0 * v\n")
    spellings = [f"{tmp_path}/{folder}/mine.py:attend" for folder in ("one", "two")]
    chosen = [part for spelling in spellings for part in ("--backend", spelling)]
    ran = verify("-k=one_head", *chosen, "--results", str(results))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    content = json.loads(results.read_text())
    assert sorted(content["backends"]) == spellings
    assert {result["backend"]: result["outcome"] for result in content["results"]} == dict(
        zip(spellings, ("pass", "fail"), strict=True)
    )
    (head,) = [line.split() for line in ran.stdout.splitlines() if line.strip().startswith(("one/mine", "two/mine"))
               and "verified" not in line and "failing" not in line]  # fmt: skip
    assert sorted(head) == ["one/mine.py:attend", "two/mine.py:attend"]
