"""The GPU box, rehearsed on a CPU: every part runs, and the results say what was left out or crashed."""

import contextlib
import dataclasses
import json
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import ceilings, children, gpu_box
from benchmarks.sweep import Plan
from verification import deadline, parallel
from verification.outcome import Evidence, LeftOut, Outcome
from verification.parallel import Job, Lost

CPU = torch.device("cpu")

HEAD = "import os, time, torch\n\n\ndef attend(q, k, v, *, mask=None, causal=False, scale=None):\n"


@pytest.fixture
def judged(tmp_path: Path):
    """Puts a body of `attend` to the files "weights" and "causality", and gives outcome and reason by property."""

    def judge(body: str, seconds: float, grace_s: float) -> dict[str, tuple[str, str | None]]:
        file = tmp_path / "mine.py"
        file.write_text(f"{HEAD}    {body}\n")
        job = Job(f"{file}:attend", ("weights", "causality"))
        out, end = tmp_path / "verification.json", time.time() + seconds
        found = parallel.verify(out, [job], CPU, "quick", deadline=end, grace_s=grace_s, logs=tmp_path)
        written = json.loads(out.read_text())
        assert written["results"] == [outcome.as_json() for outcome in found]
        assert {outcome.property for outcome in found} <= {one["id"] for one in written["properties"]}
        return {outcome.property: (outcome.outcome, outcome.reason) for outcome in found}

    return judge


def test_a_rehearsal_leaves_results_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = dataclasses.replace(gpu_box.REHEARSAL, backends=("sdpa_flash",), files=("weights",))
    monkeypatch.setattr(gpu_box, "REHEARSAL", small)
    assert gpu_box.main(["--out", str(tmp_path), "--rehearse"]) == 0
    verification, sweep, measured, after = (
        json.loads((tmp_path / f"{name}.json").read_text())
        for name in ("verification", "sweep", "ceilings", "ceilings-after")
    )
    assert verification["backends"] == ["sdpa_flash"]
    assert {result["outcome"] for result in verification["results"]} == {"pass"}
    assert [(row["workload"], row["stage"], row["status"]) for row in sweep["rows"]] == [
        ("article-512", "forward", "timed"),
        ("article-512", "backward", "timed"),
        ("gpt2", "forward", "timed"),
    ]
    assert [row["what"] for row in measured["rows"]] == [row["what"] for row in after["rows"]]
    assert [row["what"] for row in measured["rows"]] == ["matrix product", "copy"]
    every = (verification, sweep, measured, after)
    assert all(one["provenance"]["versions"]["torch"] == torch.__version__ for one in every)
    assert re.search(r"ceilings, of what they were: matrix product \d+\.\d\d, copy \d", capsys.readouterr().out)
    page = (tmp_path / "index.html").read_text()
    assert "sdpa_flash is not verified" in page  # only what has to do with weights was asked
    assert "matrix product in float32" in page


def test_the_comparison_and_the_usual_sweep_share_no_row() -> None:
    for size in (gpu_box.ON_A_GPU, gpu_box.REHEARSAL):
        cases = [str(case) for plan in (size.kernels, size.workloads) for case in plan.cases()]
        assert len(cases) == len(set(cases))


def test_what_is_timed_is_compiled_before() -> None:
    for size in (gpu_box.ON_A_GPU, gpu_box.REHEARSAL):
        compiled = {(case.workload.name, case.stage) for plan in gpu_box._ahead(size) for case in plan.cases()}
        timed = [*size.kernels.cases(), *size.workloads.cases()]
        assert compiled == {(case.workload.name, case.stage) for case in timed}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_box.main(["--out", str(tmp_path / "out")]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_test_that_is_not_begun_in_time_is_left_out_and_called_so(judged) -> None:
    outcomes = judged("raise NotImplementedError('nothing')", seconds=0.3, grace_s=600.0)
    assert len(outcomes) > 3
    assert {outcome for outcome, _ in outcomes.values()} == {"left out"}
    assert outcomes["test_rows_sum_to_one"][1] == "the time for the verification was used up before it was begun"


def test_a_test_that_is_not_done_in_time_is_left_out_and_called_so() -> None:
    item: Any = SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(deadline=time.time() + 0.2)))
    handler, test = signal.getsignal(signal.SIGALRM), deadline.pytest_pyfunc_call(item)
    next(test)
    try:
        # No Exception, which hypothesis or a compiler would take for its own.
        with pytest.raises(LeftOut, match="was used up while it ran"), contextlib.suppress(Exception):
            time.sleep(60)
    finally:
        test.close()
        signal.signal(signal.SIGALRM, handler)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_death_is_a_failure_of_the_test_that_it_came_in(judged) -> None:
    outcomes = judged("os.abort()", seconds=600.0, grace_s=0.0)
    assert outcomes.pop("test_rows_sum_to_one") == (
        "fail",
        "its process ended with status -6 and without results, in test_rows_sum_to_one",
    )
    assert {outcome for outcome, _ in outcomes.values()} == {"left out"}


def test_a_hang_ends_with_the_time(judged) -> None:
    outcomes = judged("time.sleep(600)", seconds=0.5, grace_s=0.5)
    assert outcomes == dict.fromkeys(
        ("test_weights.py", "test_causality.py"),
        ("left out", "stopped 0 s after the time for the verification was used up"),
    )


def test_a_lost_job_has_the_properties_that_others_found_in_its_files() -> None:
    known = {"id": "test_x[key]", "title": "x: key", "formula": "", "chapter": "masks"}
    found = Outcome("eager", "test_x[key]", "pass", None, Evidence(), None, 1, 0.5)
    lost = [
        Lost(Job("online", ("masks", "calls")), "no time", None),
        Lost(Job("two_pass", ("masks",)), "it died", "test_x"),
    ]
    properties, outcomes = parallel._joined([lost[0], {"properties": [known], "results": [found.as_json()]}, lost[1]])
    assert [one["id"] for one in properties] == ["test_x[key]", "test_calls.py"]
    assert outcomes[0] == found
    assert [(one.backend, one.property, one.outcome) for one in outcomes] == [
        ("eager", "test_x[key]", "pass"),
        ("online", "test_x[key]", "left out"),
        ("online", "test_calls.py", "left out"),
        ("two_pass", "test_x[key]", "fail"),
    ]


def test_every_file_that_judges_a_backend_is_run() -> None:
    chapters = parallel.chapters()
    assert {"agreement", "gradients", "layer", "masks"} < set(chapters)
    assert "article" not in chapters


def test_a_row_that_a_tight_limit_stops_is_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}    time.sleep(600)\n")
    plan = Plan("cpu", ("gpt2",), ("forward",), (128,))
    (row,) = children.sweep(f"{file}:attend", plan, 600.0, gpu_box.SWEEP, limit_s=5.0, at_limit="left out")
    assert (row["status"], row["samples_s"]) == ("left out", None)
    assert row["reason"].startswith("stopped after 5 s")


def test_a_ceiling_is_samples_and_what_they_did() -> None:
    product, copy = ceilings.measure(CPU, 64, 1 << 16, seconds=0.01)
    assert (product["flops"], product["bytes"], product["dtype"]) == (2 * 64**3, None, "float32")
    assert (copy["flops"], copy["bytes"], copy["of"]) == (None, 2 << 16, "0.0625 MiB")
    assert min(product["samples_s"] + copy["samples_s"]) > 0
