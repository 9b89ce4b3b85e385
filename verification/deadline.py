"""A pytest plugin, `-p verification.deadline --deadline SECONDS`: at that time the tests end, and the run says so.

A test that has not begun by then, or has not finished, is skipped with a reason, so that what was found before it
still reaches the results file.
"""

import signal
import time
from collections.abc import Generator
from typing import NoReturn

import pytest

from verification.outcome import LeftOut


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deadline", type=float, required=True, help="seconds since 1970 at which the tests end")


@pytest.hookimpl(wrapper=True, trylast=True)  # inside the one that makes the record
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    left_s = pyfuncitem.config.option.deadline - time.time()
    if left_s <= 0:
        _stop("before it was begun")
    signal.signal(signal.SIGALRM, lambda *_: _stop("while it ran"))
    signal.setitimer(signal.ITIMER_REAL, left_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _stop(when: str) -> NoReturn:
    raise LeftOut(f"the time for the verification was used up {when}")
