"""This session against itself or an earlier one: `pytest benchmarks/ --backend online --benchmark-compare`.

Each test verifies before it times, and the backends stand side by side in one group per shape. asv imports
this module as well, where pytest may be absent: it is imported only by functions that pytest calls.
"""

import statistics
from typing import TYPE_CHECKING

from benchmarks import clock, interpreter
from benchmarks.sweep import prepare
from benchmarks.workloads import TIMED_DTYPE, WORKLOADS, Case

if TYPE_CHECKING:
    import pytest
    from pytest_benchmark.fixture import BenchmarkFixture

    from implementations import Backend

# Short enough that every backend takes part on a CPU; the sweep has the long ones.
CASES = [
    Case(WORKLOADS[workload], seq_len, stage)
    for workload, seq_len in (("article-512", 512), ("article-512", 2048), ("llama-3-8b", 512))
    for stage in ("forward", "backward")
]


def pytest_generate_tests(metafunc: "pytest.Metafunc") -> None:
    import pytest

    from verification import selection

    if "case" not in metafunc.fixturenames:
        return
    device = selection.device(metafunc.config)
    metafunc.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=str(case).replace(" ", "-"),
                marks=pytest.mark.benchmark(
                    group=f"{case}, {TIMED_DTYPE[device.type]}", timer=lambda: clock.synced_time(device)
                ),
            )
            for case in CASES
        ],
    )


def test_latency(benchmark: "BenchmarkFixture", backend: "Backend", case: Case, pytestconfig: "pytest.Config") -> None:
    import pytest
    import torch

    from verification import selection

    device = selection.device(pytestconfig)
    try:
        with interpreter.forbidden(), torch.set_grad_enabled(case.stage == "backward"):
            call, error_of = prepare(backend, case, device)
            error = error_of(call())
            assert error <= 1, f"the error of {backend.name} is {error:.3g} times its budget: not timed"
            benchmark(call)
    except NotImplementedError as refusal:
        pytest.skip(f"refused: {refusal}")
    benchmark.extra_info["error_over_budget"] = error
    if benchmark.stats is not None:
        benchmark.extra_info["tflops"] = case.flops / statistics.median(benchmark.stats.stats.data) / 1e12
