"""Gives every property its subjects, makes the record of what became of it, and writes the records down.

The subjects are those of --backend, or every built-in backend that can run on the device. A refusal is an answer: where
a subject refuses every problem of a property, that property is skipped with the subject's reason.
"""

import os
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.errors import UnsatisfiedAssumption

from verification import journal, machine, profiles, selection, summary
from verification.judge import Subject, Wrong
from verification.outcome import DeviceLost, Evidence, Failure, LeftOut, Outcome, from_json
from verification.results import write_results
from verification.surroundings import undone

# The file whose properties are of a layer, and so of a backend's own projection.
LAYER = "test_layer"

_LOST_IN = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)  # hypothesis loads the profile that was asked for before
def pytest_configure(config: pytest.Config) -> None:
    # The problems are small: threads would wait for one another, and -n starts a process for each core.
    torch.set_num_threads(1)
    # A float32 product is one here, whatever the machine's environment makes of it.
    torch.set_float32_matmul_precision("highest")
    profiles.choose_seed(config.getoption("hypothesis_seed", None))
    selection.backends(config)  # now, so that a spelling that means nothing ends the run with one line
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="attention-journal-")
        config.add_cleanup(folder.cleanup)
        os.environ[journal.FOLDER] = folder.name  # the processes of xdist inherit it
        config.pluginmanager.register(_Findings(config, Path(folder.name)), "attention-findings")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        device, backends = selection.device(metafunc.config), selection.backends(metafunc.config)
        if metafunc.definition.path.stem != LAYER:
            twins = {name for others in selection.twins(metafunc.config).values() for name in others}
            backends = [backend for backend in backends if backend.name not in twins]
        subjects = [Subject(backend, device) for backend in backends]
        metafunc.parametrize("subject", subjects, ids=[backend.name for backend in backends])


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Makes the record of what became of a property, and the pytest outcome that goes with it."""
    subject = _subject_of(pyfuncitem)
    if subject is None:
        return (yield)
    subject.evidence = Evidence()
    evidence, stash, start = subject.evidence, pyfuncitem.config.stash, time.perf_counter()
    described = _describe(pyfuncitem)
    journal.begin_property(pyfuncitem.nodeid, subject.backend.name, described)
    kind: Any = "pass"
    reason: str | None = None
    failure: Failure | None = None
    threads = torch.get_num_threads()
    result, raised = None, None
    try:
        with undone(thoroughly=True) as changed:
            if _LOST_IN in stash:
                raise LeftOut(f"the GPU was lost in {stash[_LOST_IN]}; --isolate costs one property only")
            result = yield
        if changed:
            raise AssertionError(f"it changed {', '.join(changed)}")
        if evidence.refusals and not evidence.calls:
            raise UnsatisfiedAssumption
        if evidence.stated:
            kind, reason = "stated", evidence.stated
    except UnsatisfiedAssumption:
        kind, reason = "refused", "; ".join(sorted(evidence.refusals))
        if not evidence.refusals and evidence.machine:
            kind, reason = "left out", "; ".join(evidence.machine)
    except LeftOut as left_out:
        kind, reason = "left out", str(left_out)
    except DeviceLost as lost:
        stash[_LOST_IN] = pyfuncitem.name
        kind, failure, raised = "fail", _failure_of(lost, f"the GPU is lost: {lost}"), lost
        if hasattr(pyfuncitem.config, "workerinput"):
            print(f"{pyfuncitem.name}: {failure.counterexample}", file=sys.__stderr__, flush=True)
            os._exit(1)  # xdist reports the property and begins another process
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also what a test runner ends a test with that takes too long
        kind, failure, raised = "fail", _failure_of(error), error
    if failure:
        reason = failure.reason
    elapsed = time.perf_counter() - start
    outcome = Outcome(subject.backend.name, described["id"], kind, reason, evidence, failure, threads, elapsed)
    pyfuncitem.user_properties.append(("outcome", outcome.as_json()))
    pyfuncitem.user_properties.append(("property", described))
    if failure:
        assert raised is not None
        raise AssertionError(failure.counterexample) if isinstance(raised, DeviceLost) else raised
    if kind in ("refused", "left out"):
        pytest.skip(f"{kind}: {reason}")
    return result


def _failure_of(error: BaseException, reason: str | None = None) -> Failure:
    kind = type(error).__name__
    first = str(error).partition("\n")[0]
    if reason is None:
        reason = first if isinstance(error, AssertionError) else f"{kind}: {first}"
    whole = "\n".join([reason, *str(error).split("\n")[1:], *getattr(error, "__notes__", [])])
    kind = "AssertionError" if isinstance(error, AssertionError) else kind
    call = repr(error.call) if isinstance(error, Wrong) else None
    problem = getattr(error, "problem", None) or (None if isinstance(error, Exception) else journal.current())
    return Failure(reason, problem, kind, whole, call)


def _subject_of(item: pytest.Function) -> Subject | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("subject") if callspec else None


def _describe(item: pytest.Function) -> dict[str, str]:
    # A test may be parametrised with more than its subject; each value is a property of its own.
    others = [str(value) for name, value in item.callspec.params.items() if name != "subject"]
    name = item.originalname + "".join(f"[{value}]" for value in others)
    documented = (item.function.__doc__ or "").strip()
    return {
        "id": name,
        "title": name.removeprefix("test_").replace("_", " ").replace("[", ": ").removesuffix("]"),
        "formula": " ".join(documented.split()),
        "chapter": item.path.stem.removeprefix("test_"),
    }


@dataclass(eq=False)  # pytest keeps plugins in sets
class _Findings:
    """Collects the records, on the controller where xdist runs the tests in workers."""

    config: pytest.Config
    journals: Path
    started: float = field(default_factory=time.perf_counter)
    properties: dict[str, dict[str, str]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        sent: dict[str, Any] = dict(report.user_properties)
        if report.when == "???":
            self._died(report)
        elif report.when == "call" and "outcome" in sent:
            self._keep(from_json(sent["outcome"]), sent["property"])

    def _died(self, report: pytest.TestReport) -> None:
        """xdist's report of a test during which the process died; what it had begun is in its journal."""
        last = journal.last(self.journals, report.nodeid)
        if last is None:
            return
        reason = f"the process died, or outlasted the time limit: {report.longreprtext.splitlines()[-1]}"
        failure = Failure(
            reason, last["problem"], "process died", f"{reason}\nThe last problem begun:\n  {last['problem']}"
        )
        self._keep(
            Outcome(last["backend"], last["property"]["id"], "fail", reason, Evidence(), failure, 1, report.duration),
            last["property"],
        )

    def _keep(self, outcome: Outcome, described: dict[str, str]) -> None:
        self.properties[described["id"]] = described
        self.outcomes.append(outcome)
        if f"test_{described['chapter']}" != LAYER:
            for twin in selection.twins(self.config)[outcome.backend]:
                self.outcomes.append(replace(outcome, backend=twin))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for message in selection.messages(self.config):
            terminalreporter.write_line(message)
        if not self.outcomes:
            return
        terminalreporter.section("attention", sep="=")
        found = machine.findings(selection.device(self.config))
        for line in summary.lines(self.properties, self.outcomes, found, selection.left_out(self.config)):
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self) -> None:
        path = self.config.getoption("--results")
        if path:
            write_results(
                Path(path),
                selection.device(self.config),
                list(self.properties.values()),
                self.outcomes,
                profile=self.config.getoption("hypothesis_profile", None) or settings.get_current_profile_name(),
                duration_s=time.perf_counter() - self.started,
            )
