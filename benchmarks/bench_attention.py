"""Attention over commits: `asv run`. One sweep a commit measures everything; the tracks only read it.

The lists are written out, and nothing in them is computed: asv hands a parameter over as its index in a list
that each commit's process makes anew. A value may be removed or added, but a new parameter orphans every old
result. `version` says how things are measured; raise it when workloads, clock or FLOP formula change.
"""

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from benchmarks import children
from benchmarks.sweep import Plan

# Without fused_qkv: its attend is that of eager.
BACKENDS = [
    "eager",
    "two_pass",
    "online",
    "online_triton",
    "sdpa_math",
    "sdpa_flash",
    "sdpa_efficient",
    "sdpa_cudnn",
    "two_pass_triton",
]
WORKLOADS = ["article-512", "llama-3-8b"]
STAGES = ["forward", "backward"]
LENGTHS = [512, 4096]

# ATTN_QUICK=1 is for trying things out, with --dry-run: asv keeps quick results like any other.
QUICK = os.environ.get("ATTN_QUICK") == "1"
MEASURED_LENGTHS = LENGTHS[:1] if QUICK else LENGTHS
SHARE_S = 6.0 if QUICK else 20.0  # for one backend

CHILD = Path(__file__).with_name("commit_sweep.py")

Method = TypeVar("Method")
Rows = dict[tuple[str, str, str, int], dict[str, Any]]


def _with(**attributes: Any) -> Callable[[Method], Method]:
    """asv reads its settings from attributes of the method."""

    def mark(method: Method) -> Method:
        vars(method).update(attributes)
        return method

    return mark


class Attention:
    """Seconds and what goes with them. Latency is judged; asv takes a higher TFLOP/s for a regression."""

    params: ClassVar = [BACKENDS, WORKLOADS, STAGES, LENGTHS]
    param_names: ClassVar = ["backend", "workload", "stage", "seq_len"]
    timeout = 60
    version = "1"

    @_with(timeout=3600)
    def setup_cache(self) -> Rows:
        import torch

        device_type = "cuda" if torch.cuda.is_available() else "cpu"
        plan = Plan(device_type, tuple(WORKLOADS), tuple(STAGES), tuple(MEASURED_LENGTHS))
        # asv drops PYTHONPATH from its own import path but leaves the variable set, and through it the child would
        # import the work tree.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-P", str(CHILD)]
        return {
            (row["backend"], row["workload"], row["stage"], row["seq_len"]): row
            for backend in BACKENDS
            for row in children.sweep(backend, plan, SHARE_S, command, environment=environment)
        }

    def setup(self, rows: Rows, backend: str, workload: str, stage: str, seq_len: int) -> None:
        row = rows.get((backend, workload, stage, seq_len))
        if row is None:
            raise NotImplementedError("not asked for by ATTN_QUICK=1")
        if row["status"] in ("failed", "crashed"):
            raise RuntimeError(f"{row['status']}: {row['reason']}")
        if row["status"] != "timed":
            raise NotImplementedError(f"{row['status']}: {row['reason']}")

    @_with(unit="seconds")
    def track_latency(self, rows: Rows, *row: Any) -> dict[str, Any]:
        # asv makes intervals and quartiles of any result of this form, though only its own timers are
        # documented to.
        return {"samples": rows[row]["samples_s"], "number": 1}

    @_with(unit="TFLOP/s")
    def track_tflops(self, rows: Rows, *row: Any) -> float:
        return rows[row]["flops"] / statistics.median(rows[row]["samples_s"]) / 1e12

    @_with(unit="bytes")
    def track_extra_bytes(self, rows: Rows, *row: Any) -> int:
        return rows[row]["extra_bytes"]

    @_with(unit="error / budget")
    def track_error_over_budget(self, rows: Rows, *row: Any) -> float:
        return rows[row]["error_over_budget"]
