"""A pytest plugin, `-p verification.deadline --deadline SECONDS`: at that time the tests end, and the run says so.

A test that has not begun by then, or has not finished, is skipped with a reason, so that what was found before it
still reaches the results file.
"""

import signal
import time
from typing import NoReturn

import pytest

from verification.judge import LEFT_OUT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deadline", type=float, required=True, help="seconds since 1970 at which the tests end")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    # Later than setup: only a test that was called is reported with its backend and its property.
    left_s = pyfuncitem.config.option.deadline - time.time()
    if left_s <= 0:
        _stop("before it was begun")
    # A skip is no Exception: neither hypothesis nor a kernel's compiler takes it for a failure of its own.
    signal.signal(signal.SIGALRM, lambda *_: _stop("while it ran"))
    signal.setitimer(signal.ITIMER_REAL, left_s)


def pytest_runtest_teardown() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def _stop(when: str) -> NoReturn:
    pytest.skip(f"{LEFT_OUT}the time for the verification was used up {when}")
