"""The clock, judged: what gets a time, what gets a reason instead, and that asv reads it as we think."""

import itertools
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import implementations
from benchmarks import __main__ as command
from benchmarks import bench_attention, children, clock, interpreter, machine, workloads
from benchmarks import sweep as sweeping
from benchmarks.children import Row
from benchmarks.sweep import Cost, Finding, Plan
from benchmarks.workloads import STAGES, WORKLOADS, Case, Workload
from verification.memory import with_extra_bytes

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
SHORT = Plan("cpu", ("article-512",), ("forward",), (128, 256))
SWEEP = [sys.executable, "-m", "benchmarks.sweep"]

RIGHT = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)"

WriteBackend = Callable[[str], str]


@pytest.fixture
def backend_file(tmp_path: Path) -> WriteBackend:
    """Writes a body of attend(q, k, v, mask, causal, scale) to a file of its own and gives its spelling."""

    def write(body: str) -> str:
        path = tmp_path / f"backend_{len(list(tmp_path.iterdir()))}.py"
        head = "import os, time, torch\n\ndef attend(q, k, v, *, mask=None, causal=False, scale=None):\n"
        path.write_text(head + textwrap.indent(textwrap.dedent(body), "    "))
        return f"{path}:attend"

    return write


def measured(spelling: str, plan: Plan = SHORT, seconds: float = 600.0) -> list[Row]:
    """The rows of a sweep in this process, lengths rising."""
    backend = implementations.load(spelling)
    found = sweeping.sweep(backend, plan, CPU, clock.time.monotonic() + seconds, print)
    rows = [sweeping.as_row(spelling, "cpu", case, finding) for case, finding in found]
    return sorted(rows, key=lambda row: row["seq_len"])


def swept(spelling: str, seconds: float = 600.0, limit_s: float | None = None) -> list[Row]:
    """The same from a process of its own."""
    rows = children.sweep(spelling, SHORT, seconds, SWEEP, limit_s=limit_s)
    return sorted(rows, key=lambda row: row["seq_len"])


def statuses(rows: list[Row]) -> list[str]:
    return [row["status"] for row in rows]


# What gets a time


def test_a_right_backend_is_timed_in_every_stage(backend_file: WriteBackend) -> None:
    rows = measured(backend_file(f"return {RIGHT}"), Plan("cpu", ("gpt2",), STAGES, (128,)))
    assert statuses(rows) == ["timed"] * 3
    for row in rows:
        assert row["reason"] is None
        assert len(row["samples_s"]) >= clock.FEWEST
        assert min(row["samples_s"]) > 0
        assert 0 < row["error_over_budget"] <= 1
        assert row["verified_rows"] > 0
        assert row["flops"] == workloads.flops(WORKLOADS["gpt2"], row["stage"], 128)


def test_a_wrong_backend_has_a_failure_and_no_samples(backend_file: WriteBackend) -> None:
    rows = measured(backend_file(f"return 1.01 * {RIGHT}"), Plan("cpu", ("gpt2",), STAGES, (128,)))
    assert statuses(rows) == ["failed"] * 3
    assert all(row["samples_s"] is None and row["error_over_budget"] > 1 for row in rows)
    assert "times its budget" in rows[0]["reason"]


def test_an_answer_of_nan_is_a_failure(backend_file: WriteBackend) -> None:
    rows = measured(backend_file(f"return {RIGHT} * float('nan')"))
    assert statuses(rows) == ["failed"] * 2
    assert rows[0]["error_over_budget"] is None
    assert rows[0]["samples_s"] is None


def test_a_nan_is_a_failure_wherever_it_is(backend_file: WriteBackend) -> None:
    rows = measured(backend_file(f"return {RIGHT} * float('nan')"), Plan("cpu", ("gpt2",), ("layer",), (128,)))
    assert statuses(rows) == ["failed"]
    only_in_dk = f"if k.requires_grad: k.register_hook(lambda grad: grad * float('nan'))\nreturn {RIGHT}"
    rows = measured(backend_file(only_in_dk), Plan("cpu", ("gpt2",), ("backward",), (128,)))
    assert statuses(rows) == ["failed"]


def test_an_exception_costs_its_row_only(backend_file: WriteBackend) -> None:
    rows = measured(backend_file(f"if q.shape[2] == 128: raise KeyError('oh')\nreturn {RIGHT}"))
    assert statuses(rows) == ["failed", "timed"]
    assert rows[0]["reason"] == "KeyError: 'oh'"


def test_the_reason_of_a_refusal_is_the_backends_own(backend_file: WriteBackend) -> None:
    rows = measured(backend_file("raise NotImplementedError('only on Tuesdays')"))
    assert statuses(rows) == ["refused"] * 2
    assert rows[0]["reason"] == "only on Tuesdays"
    assert rows[0]["samples_s"] is None


def test_a_slow_backend_is_left_out_with_the_time_it_would_take(backend_file: WriteBackend) -> None:
    rows = measured(backend_file(f"time.sleep(1)\nreturn {RIGHT}"), seconds=5.0)
    assert statuses(rows) == ["left out"] * 2
    assert rows[0]["reason"].startswith("would take about 5")
    assert rows[0]["samples_s"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
def test_too_much_memory_is_an_exception_and_the_machine_survives(backend_file: WriteBackend) -> None:
    rows = swept(backend_file(f"if q.shape[2] == 128: torch.ones(1 << 50)\nreturn {RIGHT}"))
    assert statuses(rows) == ["out of memory", "timed"]


def test_a_crash_costs_one_backend(backend_file: WriteBackend, tmp_path: Path) -> None:
    crashing = backend_file(f"if q.shape[2] == 256: os.abort()\nreturn {RIGHT}")
    out = tmp_path / "sweep.json"
    arguments = ["--backend", crashing, "--backend", "eager", "--workload", "article-512"]
    ran = _benchmarks(*arguments, "--stage", "forward", "--max-length", "256", "--seconds", "600", "--out", str(out))
    rows = json.loads(out.read_text())["rows"]
    assert ran.returncode == 1, ran.stderr
    assert statuses(rows) == ["timed", "crashed", "timed", "timed"]
    assert rows[1]["reason"] == "killed by SIGABRT, in article-512 256 forward"
    assert "eager" in ran.stdout
    assert "crashed" in ran.stdout
    assert "SIGABRT" in ran.stderr


def test_a_hang_is_stopped(backend_file: WriteBackend) -> None:
    rows = swept(backend_file("time.sleep(600)"), limit_s=8.0)
    assert statuses(rows) == ["crashed"] * 2
    assert rows[0]["reason"].startswith("stopped after 8 s")


def test_what_a_backend_prints_is_not_taken_for_a_row(backend_file: WriteBackend) -> None:
    rows = swept(backend_file(f"print('{{}}')\nos.write(1, b'hello\\n')\nreturn {RIGHT}"))
    assert statuses(rows) == ["timed"] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")
def test_the_interpreter_is_never_timed() -> None:
    pytest.importorskip("triton")
    rows = measured("online_triton")
    assert statuses(rows) == ["refused"] * 2
    assert {row["reason"] for row in rows} == {interpreter.REFUSAL}


def test_the_headline_comes_first_and_then_the_cheapest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("cpu", ("article-512", "gpt2", "llama-3-8b"), ("forward",), (128, 256, 512, 1024))
    price = {"article-512": 1.0, "gpt2": 2.0, "llama-3-8b": 20.0}
    now = 0.0

    def measure(_backend: Any, case: Case, _device: Any, **_limits: float) -> tuple[Finding, Cost]:
        nonlocal now
        seconds = price[case.workload.name] * (case.seq_len / 128) ** 2
        now += seconds
        return Finding("failed"), Cost(0.0, seconds)

    monkeypatch.setattr(sweeping, "measure", measure)
    monkeypatch.setattr(sweeping.time, "monotonic", lambda: now)
    found = list(sweeping.sweep(implementations.load("eager"), plan, CPU, 60.0, print))
    assert [str(case) for case, finding in found if finding.status != "left out"] == [
        "article-512 128 forward",
        "article-512 256 forward",
        "article-512 512 forward",
        "gpt2 128 forward",
        "llama-3-8b 128 forward",
        "gpt2 256 forward",
    ]
    assert len(found) == len(plan.cases())
    assert all(finding.reason for _, finding in found if finding.status == "left out")


# The command


def _benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--backend", "egaer"], "eager"),
        (["--workload", "gpt3"], "gpt2"),
        (["--stage", "sideways"], "backward"),
        (["--max-length", "64"], "128"),
    ],
)
def test_an_unknown_name_is_one_clear_line(arguments: list[str], named: str) -> None:
    ran = _benchmarks(*arguments)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert arguments[1] in ran.stderr
    assert named in ran.stderr
    assert ran.stdout == ""


def test_the_result_file_is_what_the_report_reads(tmp_path: Path) -> None:
    out = tmp_path / "new" / "sweep.json"
    options = ["--backend", "eager", "--workload", "article-512", "--stage", "forward", "--max-length", "128"]
    ran = _benchmarks(*options, "--seconds", "600", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    result = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert list(result) == ["schema", "kind", "provenance", "clock", "allowed_s", "duration_s", "rows"]
    assert (result["schema"], result["kind"]) == (1, "sweep")
    (row,) = result["rows"]
    # fmt: off
    assert set(row) == {
        "backend", "workload", "model", "batch", "heads", "kv_heads", "head_dim", "seq_len", "causal",
        "dtype", "stage", "status", "reason", "samples_s", "flops", "extra_bytes", "error_over_budget",
        "verified_rows",
    }
    # fmt: on
    assert "[1/1] eager . 1 timed" in ran.stderr
    assert "article-512, forward" in ran.stdout


def test_a_row_without_a_time_shows_why_in_the_table() -> None:
    case = Case(WORKLOADS["gpt2"], 128, "forward")
    timed = sweeping.as_row("a", "cpu", case, Finding("timed", samples_s=[1e-3, 2e-3, 9e-3]))
    failed = sweeping.as_row("b", "cpu", case, Finding("failed", "the error is 7 times its budget"))
    (table,) = command._tables([timed, failed])
    assert [line.split()[1:] for line in table.splitlines()[2:]] == [["2.00", "ms"], ["failed"]]


# Data


def test_flops_are_the_multiplications_and_additions_of_the_unmasked_pairs() -> None:
    for causal in (True, False):
        w = Workload("small", "small", heads=6, kv_heads=2, head_dim=5, causal=causal, batch=3)
        n = 7
        pairs = sum(1 for query in range(n) for key in range(n) if key <= query or not causal)
        forward = w.batch * w.heads * pairs * (2 * w.head_dim + 2 * w.head_dim)
        gemms = [(w.d_model, w.d_model), (w.d_model, 10), (w.d_model, 10), (w.d_model, w.d_model)]
        assert workloads.flops(w, "forward", n) == forward
        assert workloads.flops(w, "backward", n) == 2.5 * forward
        assert workloads.flops(w, "layer", n) == forward + sum(2 * w.batch * n * i * o for i, o in gemms)


def test_lengths_double_and_end_with_the_device() -> None:
    assert workloads.lengths("cpu") == [128 * 2**i for i in range(7)]
    assert workloads.lengths("cuda")[-1] == 32768
    assert workloads.lengths("cpu", 300) == [128, 256]


def test_every_timed_layer_can_be_built() -> None:
    for w in WORKLOADS.values():
        layer = implementations.SelfAttention(w.d_model, w.heads, kv_heads=w.kv_heads, device="meta")
        assert sum(p.numel() for p in layer.parameters()) * 2 * 3 == (
            workloads.flops(w, "layer", 3) - workloads.flops(w, "forward", 3)
        )


# Measuring


def test_memory_tells_linear_from_quadratic() -> None:
    def extra(backend: str, n: int) -> int:
        q, k, v = torch.randn(3, 1, 2, n, 16).unbind()
        attend = implementations.load(backend).attend
        with torch.no_grad():
            return with_extra_bytes(lambda: attend(q, k, v, causal=True), CPU)[1]

    dense, blockwise = ([extra(name, n) for n in (512, 1024, 2048)] for name in ("eager", "online"))
    for shorter, longer in itertools.pairwise(dense):
        assert longer == pytest.approx(4 * shorter, rel=0.1)
    for shorter, longer in itertools.pairwise(blockwise):
        assert longer < 2.2 * shorter
    assert dense[-1] >= 2 * 2048 * 2048 * 4


def test_memory_counts_what_is_freed_again_and_not_the_result() -> None:
    def call() -> torch.Tensor:
        scratch = torch.ones(1_000_000)
        return scratch[:1000] + 1

    # Adding 1 makes a tensor of it, of a few bytes.
    assert 4_000_000 <= with_extra_bytes(call, CPU)[1] < 4_000_100
    assert with_extra_bytes(lambda: torch.ones(1000), CPU)[1] == 0


def test_what_an_earlier_call_leaves_and_this_one_releases_does_not_count() -> None:
    left = [with_extra_bytes(lambda: torch.ones(1_000_000), CPU)[0]]

    def call() -> torch.Tensor:
        first = torch.ones(500_000)
        left.clear()
        return (first + 1).sum()

    assert 4_000_000 <= with_extra_bytes(call, CPU)[1] < 4_000_100


def test_samples_are_boxed_in_time_and_never_too_few() -> None:
    calls: list[int] = []
    quick = clock.samples(lambda: calls.append(1), CPU, box_s=0.05)
    assert len(quick) == clock.MOST_CPU
    assert all(0 <= sample < 1e-3 for sample in quick)
    slow = clock.samples(lambda: clock.time.sleep(0.02), CPU, box_s=0.05)
    assert len(slow) == clock.FEWEST
    assert all(0.02 <= sample < 1 for sample in slow)


def test_samples_that_would_take_too_long_are_not_begun() -> None:
    calls: list[int] = []
    with pytest.raises(clock.OverrunError) as overrun:
        clock.samples(lambda: (calls.append(1), clock.time.sleep(0.02)), CPU, limit_s=0.05)
    assert len(calls) == 1
    assert overrun.value.needed_s >= 0.1


def test_a_cuda_sample_is_the_time_between_its_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stand-in for an asynchronous device: work is queued, and events record when it is done."""
    device = _FakeCuda()
    for name in ("synchronize", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    monkeypatch.setattr(torch, "empty", lambda size, **_: device.buffer(size))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: device.host_s)
    taken = clock.samples(lambda: device.queue(2e-3), torch.device("cuda"), box_s=0.1)
    assert taken == pytest.approx([2e-3] * len(taken))
    assert 40 <= len(taken) <= 50
    assert device.flushed == len(taken)


class _FakeCuda:
    def __init__(self) -> None:
        self.host_s = self.done_s = 0.0
        self.flushed = 0

    def queue(self, seconds: float) -> None:
        self.host_s += 5e-6
        self.done_s = max(self.done_s, self.host_s) + seconds

    def synchronize(self, _device: Any) -> None:
        self.host_s = max(self.host_s, self.done_s)

    def buffer(self, size: int) -> Any:
        assert size == clock.FLUSHED_BYTES
        cuda = self

        class Buffer:
            def zero_(self) -> None:
                cuda.flushed += 1
                cuda.queue(1e-4)

        return Buffer()

    def Event(self, enable_timing: bool) -> Any:
        assert enable_timing
        cuda = self

        class Event:
            at_s = math.nan

            def record(self) -> None:
                self.at_s = max(cuda.done_s, cuda.host_s)

            def elapsed_time(self, later: "Event") -> float:
                return (later.at_s - self.at_s) * 1e3

        return Event()


# asv


def test_asv_finds_the_tracks_without_importing_torch_or_pytest() -> None:
    """As asv does it: every module of the folder imported, in a fresh process, by the folder's name."""
    script = """
        import json, sys
        from asv_runner.discovery import disc_benchmarks, update_sys_path
        root = sys.argv[1]
        update_sys_path(root)
        found = [benchmark.name for benchmark in disc_benchmarks(root)]
        heavy = sys.modules.keys() & {"torch", "triton", "pytest", "implementations", "verification"}
        modules = [name for name in sys.modules if name.startswith("benchmarks.")]
        print(json.dumps([found, sorted(heavy), modules]))
    """
    pytest.importorskip("asv_runner")
    ran = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(script), str(ROOT / "benchmarks")],
        capture_output=True,
        text=True,
        check=True,
    )
    found, heavy, modules = json.loads(ran.stdout)
    assert [name.rpartition(".")[2] for name in sorted(found)] == [
        "track_error_over_budget",
        "track_extra_bytes",
        "track_latency",
        "track_tflops",
    ]
    assert heavy == []
    assert {f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py")} - {"benchmarks.__init__"} <= set(
        modules
    )


def test_asv_makes_statistics_of_a_track_that_returns_samples(tmp_path: Path) -> None:
    """It does so for any result with `samples` and `number`, and is documented to for its own timers only."""
    pytest.importorskip("asv_runner")
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "__init__.py").touch()
    (suite / "bench.py").write_text(
        'def track_it():\n    return {"samples": [0.010, 0.011, 0.012, 0.013, 0.014, 0.015], "number": 1}\n'
    )
    result, runner = (
        tmp_path / "result.json",
        "from asv_runner.run import _run; import sys; _run(sys.argv[1:])",
    )
    arguments = [str(suite), "bench.track_it", "{}", "None", str(result)]
    ran = subprocess.run(
        [sys.executable, "-c", runner, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    reported = json.loads(result.read_text())
    assert reported["samples"] == [0.010, 0.011, 0.012, 0.013, 0.014, 0.015]
    assert reported["number"] == 1
    from asv_runner.statistics import compute_stats

    median, stats = compute_stats(reported["samples"], reported["number"])
    assert stats is not None
    assert median == pytest.approx(0.0125)
    assert stats["ci_99_a"] <= median <= stats["ci_99_b"]


def test_a_row_without_a_time_is_na_to_asv_unless_something_is_wrong() -> None:
    case = Case(WORKLOADS["article-512"], 512, "forward")
    track = bench_attention.Attention()
    for status, raised in (
        ("refused", NotImplementedError),
        ("left out", NotImplementedError),
        ("out of memory", NotImplementedError),
        ("failed", RuntimeError),
        ("crashed", RuntimeError),
    ):
        row = sweeping.as_row("eager", "cpu", case, Finding(status, "the reason"))
        with pytest.raises(raised, match="the reason"):
            track.setup({("eager", "article-512", "forward", 512): row}, "eager", "article-512", "forward", 512)


def test_asv_reads_every_number_from_the_one_sweep() -> None:
    case = Case(WORKLOADS["article-512"], 512, "forward")
    finding = Finding("timed", None, [1e-3, 2e-3, 3e-3], 4096, 0.25, 16)
    key = ("eager", "article-512", "forward", 512)
    rows: bench_attention.Rows = {key: sweeping.as_row("eager", "cpu", case, finding)}
    track = bench_attention.Attention()
    track.setup(rows, *key)
    assert track.track_latency(rows, *key) == {"samples": [1e-3, 2e-3, 3e-3], "number": 1}
    assert track.track_tflops(rows, *key) == pytest.approx(case.flops / 2e-3 / 1e12)
    assert track.track_extra_bytes(rows, *key) == 4096
    assert track.track_error_over_budget(rows, *key) == 0.25


def test_the_lists_of_asv_are_written_out_and_known() -> None:
    source = (ROOT / "benchmarks" / "bench_attention.py").read_text()
    for name in ("BACKENDS", "WORKLOADS", "STAGES", "LENGTHS"):
        literal = source.partition(f"\n{name} = ")[2].partition("]")[0] + "]"
        assert json.loads(literal.replace(",\n]", "]")) == getattr(bench_attention, name)
    assert set(bench_attention.WORKLOADS) <= set(WORKLOADS)
    assert set(bench_attention.LENGTHS) <= set(workloads.LENGTHS)
    assert set(implementations.names()) >= set(bench_attention.BACKENDS)


# The commit's package under asv


def _commit_sweep(path: Path, **variables: str) -> tuple[list[Row], str]:
    environment = {**os.environ, "PYTHONPATH": str(path), **variables}
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "commit_sweep.py")]
    rows = children.sweep("eager", SHORT, 600.0, command, environment=environment)
    return rows, rows[0]["reason"] or ""


def _old_package(folder: Path, attend: str) -> Path:
    """A package as some older commit might have it: a copy of today's, with another `eager`."""
    package = folder / "implementations"
    package.mkdir(parents=True)
    for path in (ROOT / "implementations").glob("*.py"):
        package.joinpath(path.name).write_text(path.read_text())
    eager = package / "eager.py"
    eager.write_text(f"{eager.read_text()}\n\ndef attend(*args, **kwargs):\n    {attend}\n")
    return folder


def test_the_package_measured_is_the_commits_and_the_judge_todays(tmp_path: Path) -> None:
    rows, reason = _commit_sweep(_old_package(tmp_path, "raise NotImplementedError('the old eager')"))
    assert statuses(rows) == ["refused"] * 2
    assert reason == "the old eager"


def test_the_work_trees_package_is_never_taken_for_a_commits() -> None:
    rows, reason = _commit_sweep(ROOT, ASV_COMMIT="0123abc")
    assert statuses(rows) == ["crashed"] * 2
    assert "asv asked for commit 0123abc, but Python finds the work tree's package" in reason


def test_a_commit_without_the_package_or_the_backend_is_na(tmp_path: Path) -> None:
    elsewhere = _old_package(tmp_path / "elsewhere", "pass")
    rows, reason = _commit_sweep(elsewhere, ASV_COMMIT="0123abc")
    assert statuses(rows) == ["refused"] * 2
    assert reason == "this commit has no package `implementations`"
    older = _old_package(tmp_path / "older", "pass")
    (older / "implementations" / "eager.py").unlink()
    rows, reason = _commit_sweep(older)
    assert statuses(rows) == ["refused"] * 2
    assert "no backend is named 'eager'" in reason


def test_the_gpu_joins_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.95.05'\n")
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machine.gpu() == {"gpu": "NVIDIA H200", "gpu_driver": "580.95.05"}
    monkeypatch.setenv("PATH", "")
    assert machine.gpu() == {}
