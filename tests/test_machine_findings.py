"""A fault of the machine's own product is a finding about the machine, and a kernel's own fault stays one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor
from torch.overrides import TorchFunctionMode

import implementations
from verification import machine, summary
from verification.judge import Subject
from verification.outcome import OUTPUT_FORMULA, Evidence, Outcome
from verification.problems import Problem
from verification.property import for_all
from verification.test_statements import test_a_nan_in_a_query_shows_in_its_row_alone as nan_in_a_query

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
eager = implementations.load("eager")

# Where oneDNN's product leaks: 61 keys are the inner dimension of the weights times the values.
LEAKING = Problem(heads=2, queries=17, keys=61, dim=2, dtype="bfloat16")

PRODUCTS = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__)


def leaking(a: Tensor, product: Tensor) -> Tensor:
    """The product of a and something, in which a NaN of a row of a reaches the row before it."""
    nan = a.isnan().any(dim=-1)
    before = torch.cat([nan[..., 1:], torch.zeros_like(nan[..., :1])], dim=-1)
    return product.masked_fill(before[..., None], float("nan"))


class LeakingProduct(TorchFunctionMode):
    """As oneDNN 3.12 on a CPU with AMX: in bfloat16, where the inner dimension is odd."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in PRODUCTS and args[0].dtype == torch.bfloat16 and args[0].shape[-1] % 2:
            return leaking(args[0], out)
        return out


@contextmanager
def leaking_machine() -> Iterator[None]:
    with LeakingProduct():
        yield


def kernel(leaks: Callable[[Tensor], bool]) -> Subject:
    """A plain kernel whose own product leaks where that holds of the weights."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = eager.attend(q, k, v, **options)
        return leaking(q, out) if leaks(k) else out

    return Subject(replace(eager, name="leaks by itself", attend=attend))


@pytest.fixture(autouse=True)
def _a_sound_machine() -> None:
    if machine.findings(CPU):
        pytest.skip("the product of this machine itself leaks")


def test_a_leak_of_the_machines_product_is_no_failure_of_a_kernel() -> None:
    subject = Subject("eager")
    with leaking_machine(), pytest.raises(UnsatisfiedAssumption):
        nan_in_a_query.at(subject, LEAKING)
    assert subject.evidence.machine == [machine.LEAKING_PRODUCT.title]
    assert machine.REPORTS[machine.LEAKING_PRODUCT.title] == "uxlfoundation/oneDNN#5717"


def test_the_property_passes_there_with_the_finding_in_its_record() -> None:
    subject = Subject("eager")
    with leaking_machine():
        for_all(None, LEAKING, replace(LEAKING, keys=60))(nan_in_a_query.at)(subject)
    assert subject.evidence.machine == [machine.LEAKING_PRODUCT.title]
    assert subject.evidence.problems == 1
    assert subject.evidence.refusals == {}


def test_the_finding_names_its_dtype_and_inner_dimensions() -> None:
    with leaking_machine():
        found = machine.findings(CPU)
    assert found == {machine.LEAKING_PRODUCT.title: "bfloat16, inner dimension 1, 3, 15, 17, 31, 33, 61, 65"}
    assert machine.findings(CPU) == {}


@pytest.mark.parametrize(
    "problem",
    [
        replace(LEAKING, dtype="float32"),
        replace(LEAKING, dtype="float16"),
        replace(LEAKING, keys=60),
        replace(LEAKING, keys=64, dim=16),
    ],
    ids=str,
)
def test_a_kernel_that_leaks_by_its_own_fault_fails_on_that_machine_too(problem: Problem) -> None:
    subject = kernel(lambda k: True)
    with leaking_machine(), pytest.raises(AssertionError, match="NaN"):
        nan_in_a_query.at(subject, problem)
    assert subject.evidence.machine == []


def test_nothing_is_found_and_nothing_excused_on_a_sound_machine() -> None:
    subject = Subject("eager")
    nan_in_a_query.at(subject, LEAKING)
    assert subject.evidence.machine == []
    with pytest.raises(AssertionError, match="NaN"):
        nan_in_a_query.at(kernel(lambda k: k.dtype == torch.bfloat16), LEAKING)


def test_the_terminal_says_it_once_however_many_backends_there_are() -> None:
    title = machine.LEAKING_PRODUCT.title
    found = [
        Outcome(name, OUTPUT_FORMULA, "pass", None, Evidence(problems=3, machine=[title]), None, 1, 0.1)
        for name in ("eager", "mine.py:attend")
    ]
    lines = summary.lines({OUTPUT_FORMULA: {"title": "the output"}}, found, {title: "bfloat16"}, {})
    assert [line for line in lines if title in line] == [f"machine: {title}: bfloat16; no failure of a backend"]


INSTALLS = """
import torch
import implementations
import tests.test_machine_findings as simulated

simulated.LeakingProduct().__enter__()
attend = implementations.load("eager").attend
"""


def test_a_run_on_such_a_machine_is_green_and_names_the_finding_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(INSTALLS)
    command = [sys.executable, "-m", "pytest", "verification", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [
        "-k",
        "nan_in_a_query",
        "--hypothesis-profile",
        "quick",
        "--backend",
        f"{file}:attend",
        "--backend",
        "eager",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if machine.LEAKING_PRODUCT.title in line]
    assert line.startswith("machine: ")
    assert "bfloat16, inner dimension 1, 3" in line
