"""Options for `pytest verification/` and `pytest benchmarks/`: which backends, on which device, into which file.

They stand here because pytest reads options from the root's conftest whatever folder it is given.
"""

from pathlib import Path

import pytest

from verification import selection

_BENCHMARKS = Path(__file__).parent / "benchmarks"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attention")
    group.addoption(
        "--backend",
        action="append",
        metavar="SPELLING",
        help="a backend: a name, package.module:function or path/to/file.py:function; may be given several times. "
        "Without it: every backend known by name that can run on the device",
    )
    group.addoption("--device", help="where to run: cpu or cuda; without it, a GPU if there is one")
    group.addoption(
        "--isolate",
        action="store_true",
        help="run the tests in another process, and in a new one after each that crashes it or outlasts --timeout: "
        "both are then failures of that test. So it is for every backend that is not one of this project's",
    )
    group.addoption("--results", metavar="FILE", help="write what verification found to this JSON file")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """--isolate is xdist with at least one process, and a time limit that ends the process and not just the test."""
    if config.getoption("--isolate") or _judges_a_stranger(config):
        config.option.timeout_method = "thread"
        if not hasattr(config, "workerinput"):
            config.option.numprocesses = config.option.numprocesses or 1
            config.option.maxworkerrestart = "10000"
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def _judges_a_stranger(config: pytest.Config) -> bool:
    """Whether a backend is judged that is not of this project. Where backends are timed, one process times all."""
    asked = [spelling for spelling in config.getoption("--backend") or () if not selection.is_built_in(spelling)]
    timed = any(Path(path).resolve().is_relative_to(_BENCHMARKS) for path in config.args)
    # A name that the locale could not read is no text, and xdist sends texts.
    sendable = not any("\udc80" <= letter <= "\udcff" for spelling in asked for letter in spelling)
    return bool(asked) and sendable and not timed and config.pluginmanager.hasplugin("xdist")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # asv imports the modules in benchmarks/ too, so no conftest.py may stand there.
    if "backend" in metafunc.fixturenames and metafunc.definition.path.parent.name == "benchmarks":
        backends = selection.backends(metafunc.config)
        metafunc.parametrize("backend", backends, ids=[backend.name for backend in backends])
