"""A pytest plugin, `-p benchmarks.deadline --deadline SECONDS`: no test is begun after that time, and the run says so.

A test that is not begun is skipped with a reason, so that what was found before still reaches the results file. pytest
is imported where it is used: asv imports this module only to look for benchmarks in it.
"""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

LEFT_OUT = "left out: "


def pytest_addoption(parser: "pytest.Parser") -> None:
    parser.addoption("--deadline", type=float, required=True, help="seconds since 1970 after which no test is begun")


def pytest_pyfunc_call(pyfuncitem: "pytest.Function") -> None:
    import pytest

    # Later than setup: only a test that was called is reported with its backend and its claim.
    deadline: float = pyfuncitem.config.option.deadline
    if time.time() > deadline:
        pytest.skip(f"{LEFT_OUT}the time for the verification was used up before it was begun")
