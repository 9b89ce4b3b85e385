"""Options for `pytest verification/` and `pytest benchmarks/`: which backends, on which device, into which file."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attention")
    group.addoption(
        "--backend",
        action="append",
        metavar="SPELLING",
        help="a backend: a name, package.module:function or path/to/file.py:function; may be given several times. "
        "Without it: every built-in backend that can run on the device",
    )
    group.addoption("--device", help="where to run: cpu or cuda; cuda if there is one")
    group.addoption("--results", metavar="FILE", help="write what verification found to this JSON file")
