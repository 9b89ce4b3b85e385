"""The quantities a panel shows, each from the samples and counts of the same rows."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from reports import formats
from reports.frames import groups, having, records, unique, where

BASELINE = "eager"
STAGES = ("forward", "backward", "layer")

# One panel compares backends on one problem over its sequence length.
PANEL = ["workload", "model", "heads", "kv_heads", "head_dim", "dtype", "causal"]


@dataclass(frozen=True)
class Measure:
    key: str  # column of the value; key_low and key_high hold the 25-75 % quantiles where `ranged`
    title: str
    better: str
    text: Callable[..., str]
    ranged: bool


LATENCY = Measure("latency", "Latency", "lower is better", formats.seconds, ranged=True)
THROUGHPUT = Measure("tflops", "TFLOP/s", "higher is better", formats.plain, ranged=True)
SPEEDUP = Measure("speedup", f"Speed-up over {BASELINE}", "higher is better", formats.ratio, ranged=False)
MEMORY = Measure("memory", "Extra memory", "lower is better", formats.size, ranged=False)
ERROR = Measure("error", "Error over budget", "lower is better, over 1 is wrong", formats.plain, ranged=False)
MEASURES = (LATENCY, THROUGHPUT, SPEEDUP, MEMORY, ERROR)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a column for each measure; a row without a time keeps its error, which may be why."""
    flops = rows["flops"] / 1e12
    derived = rows.assign(
        latency=rows["median_s"],
        latency_low=rows["q25_s"],
        latency_high=rows["q75_s"],
        tflops=flops / rows["median_s"],
        tflops_low=flops / rows["q75_s"],
        tflops_high=flops / rows["q25_s"],
        memory=rows["extra_bytes"],
        error=rows["error_over_budget"],
    )
    problem = [*PANEL, "stage", "seq_len", "batch"]
    baseline = having(derived, backend=BASELINE).rename(columns={"median_s": "baseline_s"})
    derived = derived.merge(baseline.filter([*problem, "baseline_s"]), on=problem, how="left", validate="many_to_one")
    return derived.assign(speedup=derived["baseline_s"] / derived["median_s"])


def panels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each problem, in the order of the file."""
    found = []
    for _, panel in groups(rows, PANEL):
        # Batches that shrink as sequences grow are one line; several batches at one length are not.
        problems = panel.drop_duplicates(["seq_len", "batch"])
        several = problems["seq_len"].duplicated().any()
        found += [part for _, part in groups(panel, ["batch"])] if several else [panel]
    return found


@dataclass(frozen=True)
class Fastest:
    """The fastest verified backend at the longest sequence length where most backends have a time."""

    backend: str
    seq_len: int
    latency: float
    speedup: float
    timed: int
    of: int


def fastest(panel: pd.DataFrame, verified: set[str]) -> Fastest | None:
    """Of the rows of one panel and stage; None where no verified backend has a time.

    A backend with a wrong answer in one of these rows does not count, even where it passes every property.
    """
    wrong = unique(having(panel, status="failed"), "backend")
    timed = where(panel, panel["backend"].isin(list(verified.difference(wrong))) & panel["latency"].notna())
    if timed.empty:
        return None
    backends = {length: len(unique(of_length, "backend")) for (length,), of_length in groups(timed, ["seq_len"])}
    # More than half of the most there are at any length: a comparison may leave slow ones out of its longest lengths.
    longest = max(length for length, count in backends.items() if 2 * count > max(backends.values()))
    best = min(records(having(timed, seq_len=longest)), key=lambda row: row["latency"])
    return Fastest(
        best["backend"],
        longest,
        best["latency"],
        best["speedup"],
        backends[longest],
        len(unique(timed, "backend")),
    )
