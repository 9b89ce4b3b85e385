"""Gives every property its subjects; keeps what was found for the summary table and the results file.

The subjects are those of --backend, or every built-in backend that can run on the device. A refusal is an answer: where
a subject refuses every problem of a property, that property is skipped with the subject's reason.
"""

import os
import re
import sys
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption

from verification import profiles as profiles
from verification import selection
from verification.judge import LEFT_OUT, DeviceLost, Evidence, Subject
from verification.problems import DTYPES
from verification.provenance import write

_LOST_IN = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # The problems are small: threads would wait for one another, and -n starts a process for each core.
    torch.set_num_threads(1)
    # A float32 product is one here, whatever the machine's environment makes of it.
    torch.set_float32_matmul_precision("highest")
    selection.backends(config)  # now, so that a spelling that means nothing ends the run with one line
    config.pluginmanager.register(_Findings(config), "attention-findings")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        device, backends = selection.device(metafunc.config), selection.backends(metafunc.config)
        subjects = [Subject(backend, device) for backend in backends]
        metafunc.parametrize("subject", subjects, ids=[backend.name for backend in backends])


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    subject = _subject_of(pyfuncitem)
    if subject is None:
        return (yield)
    subject.evidence = Evidence()
    evidence, stash = subject.evidence, pyfuncitem.config.stash
    try:
        if _LOST_IN in stash:
            pytest.skip(f"{LEFT_OUT}the GPU was lost in {stash[_LOST_IN]}; --isolate costs one property only")
        result = yield
        if evidence.refusals and not evidence.calls:
            pytest.skip(f"refused: {'; '.join(sorted(evidence.refusals))}")
        return result
    except DeviceLost as lost:
        stash[_LOST_IN] = pyfuncitem.name
        told = "\n".join([f"the GPU is lost: {lost}", *getattr(lost, "__notes__", [])])
        if hasattr(pyfuncitem.config, "workerinput"):
            print(f"{pyfuncitem.name}: {told}", file=sys.__stderr__, flush=True)
            os._exit(1)  # xdist reports the property and begins another process
        pyfuncitem.user_properties.append(("counterexample", told))
        raise AssertionError(told) from lost
    except Exception as failure:
        # Where every problem met a refusal, hypothesis ran out of problems.
        if isinstance(failure, Unsatisfiable | UnsatisfiedAssumption) and evidence.refusals:
            pytest.skip(f"refused: {'; '.join(sorted(evidence.refusals))}")
        told = "\n".join([str(failure), *getattr(failure, "__notes__", [])])
        pyfuncitem.user_properties.append(("counterexample", told))
        raise
    finally:
        pyfuncitem.user_properties.append(("evidence", asdict(subject.evidence)))
        pyfuncitem.user_properties.append(("backend", subject.backend.name))
        pyfuncitem.user_properties.append(("claim", _describe(pyfuncitem)))


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
        "title": _title(name),
        "formula": " ".join(documented.split()),
        "chapter": item.path.stem.removeprefix("test_"),
    }


def _title(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ").replace("[", ": ").removesuffix("]")


@dataclass(eq=False)  # pytest keeps plugins in sets
class _Findings:
    """Collects the reports, on the controller where xdist runs the tests in workers."""

    config: pytest.Config
    started: float = field(default_factory=time.perf_counter)
    claims: dict[str, dict[str, str]] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        if report.when == "???" and report.nodeid.endswith("]"):
            # xdist's report of a test during which the process died; of the test only its name is known.
            name, _, rest = report.nodeid.rpartition("::")[2].partition("[")
            claim = {"id": name, "title": _title(name), "formula": "", "chapter": "crashes"}
            told = {
                "backend": rest.removesuffix("]"),
                "claim": self.claims.get(name, claim),
                "evidence": asdict(Evidence()),
                "counterexample": f"the process died, or outlasted the time limit: {_last_line(report)}",
            }
        elif report.when != "call" or "evidence" not in told:
            return
        evidence, claim = told["evidence"], told["claim"]
        self.claims[claim["id"]] = claim
        outcome = {"passed": "pass", "failed": "fail", "skipped": "refused"}[report.outcome]
        reason = None
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ").removeprefix("refused: ")
            if reason.startswith(LEFT_OUT):
                outcome, reason = "left out", reason.removeprefix(LEFT_OUT)
        elif report.outcome == "failed":
            reason = str(told["counterexample"]).partition("\n")[0]
        elif evidence["stated"]:
            outcome, reason = "stated", evidence["stated"]
        self.results.append(
            {
                "backend": told["backend"],
                "property": claim["id"],
                "outcome": outcome,
                "reason": reason,
                "problems": evidence["problems"],
                "refusals": sum(evidence["refusals"].values()),
                "worst": {dtype: max(by_length.values()) for dtype, by_length in evidence["worst"].items()},
                "worst_by_length": evidence["worst"],
                "counterexample": told.get("counterexample"),
                "duration_s": round(report.duration, 3),
            }
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.results:
            return
        terminalreporter.section("attention", sep="=")
        for line in _table(self.claims, self.results):
            terminalreporter.write_line(line)
        for line in _reasons(self.claims, self.results):
            terminalreporter.write_line(line)
        for backend, reason in selection.left_out(self.config).items():
            terminalreporter.write_line(f"left out: {backend}: {reason}")

    def pytest_sessionfinish(self) -> None:
        path = self.config.getoption("--results")
        if not path or hasattr(self.config, "workerinput"):
            return
        write(
            Path(path),
            "verification",
            selection.device(self.config),
            profile=settings.get_current_profile_name(),
            duration_s=round(time.perf_counter() - self.started, 1),
            backends=list(dict.fromkeys(result["backend"] for result in self.results)),
            properties=list(self.claims.values()),
            results=[
                result
                | {
                    "worst": _json_numbers(result["worst"]),
                    "worst_by_length": {t: _json_numbers(found) for t, found in result["worst_by_length"].items()},
                }
                for result in self.results
            ],
        )


def _json_numbers(numbers: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no infinity."""
    return {name: number if number < float("inf") else None for name, number in numbers.items()}


def _table(claims: dict[str, dict[str, str]], results: list[dict[str, Any]]) -> list[str]:
    """Property x backend, then the worst error over budget of each backend and dtype."""
    backends = list(dict.fromkeys(result["backend"] for result in results))
    cells = {(result["property"], result["backend"]): result["outcome"] for result in results}
    width = max(len(claim["title"]) for claim in claims.values())
    columns = [max(8, len(_short(backend))) for backend in backends]
    lines = [" " * width + "".join(f"  {_short(b):>{c}}" for b, c in zip(backends, columns, strict=True))]
    for name, claim in claims.items():
        outcomes = [cells.get((name, backend), "") for backend in backends]
        row = ["FAIL" if outcome == "fail" else outcome for outcome in outcomes]
        lines.append(f"{claim['title']:<{width}}" + "".join(f"  {r:>{c}}" for r, c in zip(row, columns, strict=True)))
    lines.append("")
    for dtype in DTYPES:
        row = []
        for backend in backends:
            found = [r["worst"][dtype] for r in results if r["backend"] == backend and dtype in r["worst"]]
            row.append(f"{max(found):.3g}" if found else "-")
        told = f"worst error / budget, {dtype}"
        lines.append(f"{told:<{width}}" + "".join(f"  {r:>{c}}" for r, c in zip(row, columns, strict=True)))
    return lines


def _reasons(claims: dict[str, dict[str, str]], results: list[dict[str, Any]]) -> list[str]:
    """A line for each failure, with its smallest problem, and for each reason of a refusal or of what was stated."""
    lines: list[str] = []
    for result in results:
        if result["outcome"] == "fail":
            smallest = re.findall(r"Problem\(.*\)(?=,?$)", result["counterexample"] or "", flags=re.MULTILINE)
            told = smallest[0] if smallest else result["reason"]
            lines.append(f"FAIL: {_short(result['backend'])}: {claims[result['property']]['title']}: {told}")
    told_of: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result["outcome"] in ("refused", "stated", "left out"):
            told_of.setdefault((result["outcome"], result["reason"]), []).append(_short(result["backend"]))
    lines += [f"{outcome}: {', '.join(dict.fromkeys(told))}: {reason}" for (outcome, reason), told in told_of.items()]
    return ["", *lines] if lines else []


def _short(backend: str) -> str:
    """A user's spelling without its folders."""
    return backend.rpartition("/")[2]


def _last_line(report: pytest.TestReport) -> str:
    return report.longreprtext.splitlines()[-1]
